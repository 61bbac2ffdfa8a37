"""What is served without an archive; see :mod:`modelserver.ext.files.extension`."""
