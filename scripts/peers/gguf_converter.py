"""llama.cpp's own converter from Hugging Face folders to GGUF files, for models with any tokenizer.

    python -m scripts.peers.gguf_converter CONVERTER_FOLDER MODEL_FOLDER --outfile FILE --outtype bf16

The converter refuses a tokenizer if it does not know how that splits text into words. The benchmarks send token ids, so
any way to split text serves here.
"""

import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

SCRIPT = "convert_hf_to_gguf.py"
REQUIREMENTS = "requirements"
"""Folder of the packages that the converter needs in addition to this project's."""


def main() -> None:
    """Convert. The arguments after the first one are the converter's."""
    converter = Path(sys.argv.pop(1))
    sys.path[:0] = [str(converter), str(converter / "gguf-py"), str(converter / REQUIREMENTS)]
    text_model: Any = import_module("conversion.base").TextModel
    recognised = text_model.get_vocab_base_pre

    def get_vocab_base_pre(model: Any, tokenizer: Any) -> Any:
        try:
            return recognised(model, tokenizer)
        except NotImplementedError:
            return "default"

    text_model.get_vocab_base_pre = get_vocab_base_pre
    runpy.run_path(str(converter / SCRIPT), run_name="__main__")


if __name__ == "__main__":
    main()
