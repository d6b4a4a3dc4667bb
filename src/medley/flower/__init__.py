"""A recipe as a Flower app: ``app = server_app("recipe.toml")``, and ``app = client_app("recipe.toml")``.

``medley deploy init`` writes a whole app; docs/deploy.md shows how to run it on your own machines.

Side: both. The app of a node's machine uses `client_app`, that of the operator's machine `server_app`.
"""

from ..contract.public import public
from ..deploy.node.app import client_app
from ..deploy.node.study import study_client_app
from ..deploy.server.app import server_app
from ..deploy.server.study import study_server_app

__all__ = ["client_app", "server_app", "study_client_app", "study_server_app"]

public(__name__)
