from components.api import AsyncLake as AsyncLake
from components.api import Lake as Lake
from components.api import connect as connect
from components.api import open_async

open = open_async  # noqa: A001
