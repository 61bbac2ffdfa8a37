"""torch-model-archiver's Python API (reference 11.1): its modules, classes and fields, over ours.

Scripts may import it from here. Those that import ``model_archiver`` find it too where
``modelserver-aliases install`` was run and its folder is on their path (``names.offer``).

Archives are written whole or not at all, an export path is made if it is missing, and an unknown runtime or
format is refused.
"""

from modelserver.model_archiver.model_archiver import ModelArchiver
from modelserver.model_archiver.model_archiver_config import ModelArchiverConfig
from modelserver.model_archiver.version import __version__

__all__ = ["ModelArchiver", "ModelArchiverConfig", "__version__"]
