"""TLS of the listeners (reference 3.3).

Different from TorchServe: TLS 1.3 and all modern ciphers are offered beside TLS 1.2, clients may be asked for
a certificate, and Java keystores (JKS) are refused.
"""
