"""The certificate of the listeners, from PEM files, a keystore, or made at the start (reference 3.3)."""
