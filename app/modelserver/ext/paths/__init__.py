"""Models that answer at a path of their own; see :mod:`modelserver.ext.paths.extension`."""
