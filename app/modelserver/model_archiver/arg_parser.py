"""``ArgParser``: the command line made a configuration."""

from __future__ import annotations

import os

from modelserver.model_archiver.model_archiver_config import ModelArchiverConfig
from modelserver.tools.archiver import make_parser

__all__ = ["ArgParser"]


class ArgParser:
    """Reads the flags of the command."""

    @staticmethod
    def export_model_args_parser() -> ModelArchiverConfig:
        """What ``sys.argv`` says; ends the process with status 2 where that is wrong, as argparse does."""
        parser = make_parser()
        parser.set_defaults(export_path=os.getcwd())
        return ModelArchiverConfig.from_args(parser.parse_args())
