import numpy as np
from numpy.typing import NDArray

def instruction_sets() -> list[str]: ...
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
