"""The server's side of workers on other machines."""
