"""What the example gallery needs to know."""

import tempfile
from pathlib import Path
from typing import Any


def arguments(gallery_conf: dict[str, Any], script_vars: dict[str, Any]) -> list[str]:
    """Return the command-line arguments of an example: files go to a temporary folder."""
    if Path(script_vars["src_file"]).stem != "plot_0_quickstart":
        return []
    return ["--output", tempfile.mkdtemp(prefix="quickstart")]
