"""KServe's model repository; see :mod:`modelserver.ext.repository.extension`."""
