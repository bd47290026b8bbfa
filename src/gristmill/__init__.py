"""Gristmill: from one recipe to a small, proven, served language model.

import gristmill

artifact = gristmill.build("demo")
with gristmill.LLM("demo") as llm:
    print(llm.generate("Once upon a time", gristmill.SamplingParams(max_tokens=32))[0].outputs[0].text)
"""

from gristmill.facade import LLM, build, compile
from gristmill.runtime import errors
from gristmill.runtime.sampling.params import SamplingParams

__all__ = ["LLM", "SamplingParams", "build", "compile", "errors"]
