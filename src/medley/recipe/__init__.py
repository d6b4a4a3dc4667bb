"""Recipes: a federation, methods and the options of a run, in TOML. Keys are the names of constructor arguments.

```toml
[problem]
kind = "Network"
model = "mlp"             # further keys are the model's, or Network's; features and classes come from the data
hidden = [64]

[data]
name = "digits"           # further keys are the reader's; split, train, test, pool, standardise, flatten, validation

[partition]
kind = "Dirichlet"
clients = 100
alpha = 0.1

[pace]
lr = { kind = "Uniform", low = 0.01, high = 0.1 }
epochs = { kind = "Integers", low = 1, high = 10 }
batch = 32                # "full" is the full batch

[participation]           # or a number above all tables: participation = 0.1
fraction = 0.1

[membership]              # of scenarios.Membership: clients that join or leave, and their rounds
joins = { 3 = 10 }
leaves = { 1 = 5 }

[devices]
preset = "phones"

[stream]                  # tasks, one after the other; run.rounds is then the number of rounds of one task
kind = "Split"
tasks = 5
mode = "class"

[replay]                  # the rows that clients keep of past tasks
kind = "Ring"
capacity = 80
sample = 40

[attack]                  # of scenarios.Attack: some clients lie
kind = "sign flip"
share = 0.2

[run]                     # rounds, seed or seeds, and the options of medley.run
rounds = 100
seeds = 5

[codec]                   # of medley.wire.codecs: compresses replies
kind = "Delta"
inner = { kind = "Quantise", bits = 8 }

[reply_policy]            # of medley.ReplyPolicy
retries = 2

[secure]                  # of medley.SecureSum: the server learns sums of replies only
bound = 10.0

[clients]                 # on machines of other people: the largest values that they may report of their data
rows = 5000
classes = 10

[faults]                  # of transports.Lossy, around the transport of the run
loss = 0.2

[[methods]]
kind = "FedAvg"           # lr multiplies the clients' lr; further keys are the method's settings
lr = 2.0

[tune]
rounds = 50
grid = { lr = [0.3, 1, 3], FedProx = { mu = [0.01, 0.1] } }
```
"""

from .build import transport as transport
from .build import transport_kinds as transport_kinds
from .recipe import Recipe as Recipe
from .recipe import load as load
from .recipe import loads as loads
from .recipe import tuned as tuned
from .schema import FOLDS as FOLDS
from .schema import KINDS as KINDS
from .schema import LAWS as LAWS
from .schema import PRESETS as PRESETS
from .schema import constructors as constructors
from .schema import methods as methods
