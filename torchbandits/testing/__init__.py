"""Contract suites for policies, arm sources, environments and posteriors of your own.

Subclass a contract in a test file, name the subclass `Test…`, and return what you wrote from its one abstract method: pytest
collects the inherited `test_*` methods, each of which is one law. The package's own tests run the same suites. pytest is not
imported here, and any runner that calls the methods of a fresh instance will do.

Every assertion says in words what was expected. `pytest.register_assert_rewrite("torchbandits.testing")` at the top of a
`conftest.py`, before the first import of this module, adds the values that were compared.
"""

from torchbandits.testing.environments import EnvironmentContract
from torchbandits.testing.policies import PolicyContract
from torchbandits.testing.posteriors import PosteriorContract
from torchbandits.testing.sources import ArmSourceContract

__all__ = ["ArmSourceContract", "EnvironmentContract", "PolicyContract", "PosteriorContract"]
