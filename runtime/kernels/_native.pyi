from typing import Any

import numpy as np
from numpy.typing import NDArray

def instruction_sets() -> list[str]: ...
def effective_threads() -> int: ...

class Engine:
    def __init__(self, file: Any, model: dict[str, Any], options: dict[str, Any]) -> None: ...
    def execute(
        self,
        token_ids: NDArray[np.int32],
        starts: NDArray[np.int32],
        lengths: NDArray[np.int32],
        block_ids: NDArray[np.int32],
        table_starts: NDArray[np.int32],
        logit_rows: NDArray[np.int32],
    ) -> NDArray[np.float32]: ...
    @property
    def seconds(self) -> dict[str, float]: ...
    @property
    def instruction_set(self) -> str: ...
    @property
    def threads(self) -> int: ...
def linear_forms(isa: str) -> list[str]: ...
def linear_panel(
    isa: str,
    kind: str,
    packed: NDArray[np.uint8],
    rows: int,
    columns: int,
    group: int,
    zero_points: bool,
    form: str,
    values: NDArray[np.uint8],
    scales: NDArray[np.float32],
    sums: NDArray[np.int32],
    tokens: int,
    panel: int,
    last: int,
    panels_a_call: int = 1,
) -> NDArray[np.float32]: ...
