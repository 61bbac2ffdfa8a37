"""The handlers that come with modelserver, and what a handler of your own builds on.

Importing this package imports neither torch nor Pillow; its modules ``base``, ``vision``,
``image_classifier`` and their like do.
"""
