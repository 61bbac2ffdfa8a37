"""Packages of a model's own; see :mod:`modelserver.ext.packages.extension`."""
