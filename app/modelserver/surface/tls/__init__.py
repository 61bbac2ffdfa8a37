"""TLS of the listeners (reference 3.3).

Unlike in TorchServe, TLS 1.3 and all modern ciphers are offered besides TLS 1.2, client certificates can be
required, and Java keystores (JKS) are refused.
"""
