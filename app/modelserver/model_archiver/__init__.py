"""torch-model-archiver's Python API (reference 11.1): its modules, classes and fields, over ours.

Scripts may import it from here. Those that import ``model_archiver`` find it too where
``modelserver-aliases install`` was run and its folder is on their path (``names.offer``).

Better than there: archives are written at once whole or not at all, an export path is made, and a runtime or
a format that does not exist is refused.
"""

from modelserver.model_archiver.model_archiver import ModelArchiver
from modelserver.model_archiver.model_archiver_config import ModelArchiverConfig
from modelserver.model_archiver.version import __version__

__all__ = ["ModelArchiver", "ModelArchiverConfig", "__version__"]
