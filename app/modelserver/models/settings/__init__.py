"""config.properties, ``TS_*`` environment variables and flags become one frozen ``Settings``."""
