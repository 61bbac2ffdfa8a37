"""Archives: finding, downloading, checking and unpacking them."""
