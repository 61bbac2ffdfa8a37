"""The API documentation for people; see :mod:`modelserver.ext.docs.extension`."""
