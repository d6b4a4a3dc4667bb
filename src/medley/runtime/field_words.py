"""Words of PyTorch, scikit-learn, Flower and papers, each with what Medley has in its place: the one table of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple


class Meaning(NamedTuple):
    """What words of other libraries are called here."""

    words: str
    """The words, in any case and with or without underscores."""
    names: tuple[str, ...] = ()
    """Names for the same thing: of those that the call or module has, the first, or the first group in one text."""
    text: str = ""
    """Where it is if the call or module has none of ``names``."""
    code: tuple[str, ...] = ()
    """How to write it there in Python. "Federation" and "run" are the calls, their other arguments left out."""
    toml: str = ""
    """The same in a recipe; empty: there is no other way to write it there than in Python."""
    unless: str = ""
    """If the call has this name, ``names`` mean something else in it."""


CLIENTS_LR = "the clients' learning rate is part of their pace"
ONE_SIDED = "no class is written for one client or the server: a method has both sides"
PERSONAL = "methods that personalise a model are"
HISTORY = "a result's figures are columns of its history"
DATA = "the rows of all clients are one data set, or a list with an entry for each client"
MODEL = "a network with its loss is a problem, the first argument of Federation"

MEANINGS = (
    # Local training.
    Meaning(
        "learning_rate lr lrate step_size client_lr local_lr eta_l eta_local stepsize",
        ("lr",), CLIENTS_LR, ("Federation(..., pace=md.scenarios.Pace(lr=0.1))",), "[pace]\nlr = 0.1",
        unless="private",  # in [[methods]] of a recipe lr is a factor
    ),
    Meaning("eta eta_g global_lr server_learning_rate", ("server_lr", "lr"), CLIENTS_LR,
            ("Federation(..., pace=md.scenarios.Pace(lr=0.1))",), "[pace]\nlr = 0.1"),
    Meaning("server_lr", (), "methods with a step on the server have one of its size",
            ("md.FedAvg(server_lr=1.0)", "md.FedAdam(server_lr=0.01)")),
    Meaning(
        "batch_size batch train_batch_size local_batch_size mini_batch minibatch_size bs per_device_train_batch_size",
        ("batch",), "the size of a mini-batch is part of the clients' pace",
        ("Federation(..., pace=md.scenarios.Pace(batch=32))",), "[pace]\nbatch = 32",
    ),
    Meaning(
        "epochs local_epochs num_epochs n_epochs client_epochs max_epochs num_train_epochs E",
        ("epochs",), "a client's epochs in a round are part of its pace, and run counts rounds",
        ("Federation(..., pace=md.scenarios.Pace(epochs=5))", "run(..., rounds=10)"), "[pace]\nepochs = 5",
    ),
    Meaning("local_steps num_local_steps steps local_iterations tau", ("steps",),
            "a client's steps in a round are part of its pace",
            ("Federation(..., pace=md.scenarios.Pace(steps=10))",), "[pace]\nsteps = 10"),
    Meaning("momentum local_momentum", ("momentum",), "clients' momentum is part of their pace, the server's a method",
            ("Federation(..., pace=md.scenarios.Pace(momentum=0.9))", "md.FedAvgM(beta=0.9)"),
            "[pace]\nmomentum = 0.9"),
    Meaning("server_momentum beta_1 momentum", ("beta", "beta1"), "a method has the server's momentum",
            ("md.FedAvgM(beta=0.9)",)),
    Meaning("weight_decay wd l2_reg", ("weight_decay", "mu"), "weight decay is part of the clients' pace",
            ("Federation(..., pace=md.scenarios.Pace(weight_decay=1e-4))",), "[pace]\nweight_decay = 1e-4"),
    Meaning("l2 C penalty reg regularization regularisation lambda lam alpha reg_lambda", ("mu",)),
    Meaning(
        "optimizer optim optimiser client_optimizer optimizer_fn local_optimizer sgd adam",
        ("optimizer",), "the clients' optimizer is part of their pace; the server's is a method",
        ("Federation(..., pace=md.scenarios.Pace(optimizer='adam'))", "md.FedAdam()"), '[pace]\noptimizer = "adam"',
    ),
    Meaning("scheduler lr_scheduler lr_schedule lr_decay", ("schedule",), "a schedule is part of the clients' pace",
            ("Federation(..., pace=md.scenarios.Pace(schedule=md.scenarios.cosine(rounds=100)))",),
            "[pace]\nschedule = {kind = \"cosine\", rounds = 100}"),
    Meaning("max_grad_norm grad_clip gradient_clipping clip_norm clipnorm clipping_norm clipping_threshold", ("clip",),
            "the bound on a local gradient is part of the clients' pace",
            ("Federation(..., pace=md.scenarios.Pace(clip=1.0))",), "[pace]\nclip = 1.0"),
    # Who takes part, and for how long.
    Meaning(
        "num_rounds n_rounds rounds global_rounds communication_rounds comm_rounds max_rounds n_iter max_iter T "
        "num_server_rounds num_iterations", ("rounds",), "rounds are an argument of run", ("run(..., rounds=10)",),
        "[run]\nrounds = 10",
    ),
    Meaning(
        "num_clients n_clients num_partitions num_supernodes clients_num number_of_clients n_parties num_parties",
        ("clients",), "the number of clients is an argument of the partition",
        ("Federation(..., partition=md.partitions.IID(clients=10))",), '[partition]\nkind = "IID"\nclients = 10',
        unless="partition",
    ),
    Meaning(
        "fraction_fit client_fraction fraction fraction_train fraction_clients sample_rate sampling_rate "
        "client_sampling participation_rate frac sample_fraction", ("fraction",),
        "the share of the clients in a round is the federation's participation",
        ("Federation(..., participation=0.1)",), '[participation]\nkind = "Fraction"\nfraction = 0.1',
    ),
    Meaning(
        "clients_per_round participants num_sampled_clients min_fit_clients min_available_clients fraction_evaluate "
        "min_evaluate_clients min_train_nodes min_available_nodes min_evaluate_nodes", (),
        "the share of the clients in a round is the federation's participation, and a quorum part of the reply policy",
        ("Federation(..., participation=0.1)", "run(..., reply_policy=md.ReplyPolicy(quorum=0.5))"),
        '[participation]\nkind = "Fraction"\nfraction = 0.1',
    ),
    Meaning("participation", ("participation",), "the share of the clients in a round is the federation's",
            ("Federation(..., participation=0.1)",), '[participation]\nkind = "Fraction"\nfraction = 0.1'),
    Meaning("min_clients min_replies quorum", ("quorum",), "a quorum is part of the reply policy",
            ("run(..., reply_policy=md.ReplyPolicy(quorum=0.5))",), "[reply_policy]\nquorum = 0.5"),
    Meaning("round_timeout timeout deadline", ("deadline",), "a deadline is part of the reply policy",
            ("run(..., reply_policy=md.ReplyPolicy(deadline=60))",), "[reply_policy]\ndeadline = 60"),
    # A run and its options.
    Meaning("strategy algorithm aggregator aggregation aggregation_method server_strategy", ("rule", "method"),
            "a strategy is a method, the first argument of run", ("md.FedAvg()", "md.FedProx(mu=0.01)"),
            '[[methods]]\nkind = "FedAvg"'),
    Meaning("random_state random_seed seed rng manual_seed", ("seed", "seeds"), "the seed is an argument of run",
            ("run(..., seed=1)",), "[run]\nseed = 1"),
    Meaning("device cuda gpu use_cuda accelerator use_gpu num_gpus", ("device",), "the device is an argument of run",
            ('run(..., device="cuda")',), '[run]\ndevice = "cuda"'),
    Meaning("verbose verbosity log_level print_every", ("progress",),
            "run shows its progress if you ask it to; a function can see each round",
            ("run(..., progress=True)", "run(..., on_round=print)")),
    Meaning("callbacks callback hooks on_round_end on_epoch_end logger loggers", ("on_round",),
            "run calls a function with each round's figures", ("run(..., on_round=print)",)),
    Meaning("n_jobs num_workers workers n_workers max_workers num_processes client_resources backend parallel",
            ("jobs", "workers", "transport"), "the number of processes is an option of the transport",
            ("run(..., transport=md.transports.Processes(workers=2))",)),
    Meaning("early_stopping early_stop patience", ("patience",), "run stops early without progress of its best figure",
            ('run(..., best="accuracy", evaluate_on="validation", patience=5)',),
            '[federation]\nvalidation = 0.2\n[run]\nbest = "accuracy"\nevaluate_on = "validation"\npatience = 5'),
    Meaning("checkpoint_dir checkpoint_path save_path output_dir out_dir log_dir output out",
            ("checkpoint", "save", "folder"),
            "a run's folder is an argument of run", ('run(..., checkpoint="runs/a")',)),
    Meaning("compression compressor compress quantization quantisation", ("codec",), "a codec compresses the messages",
            ("run(..., codec=md.codecs.Quantise(bits=8))",), '[codec]\nkind = "Quantise"\nbits = 8'),
    Meaning("initial_parameters init_weights initial_weights pretrained weights_init initial_arrays", ("init",),
            "run begins at weights of yours", ("run(..., init=model)",)),
    Meaning("mixed_precision precision fp16 amp", ("dtype",), "the precision of numbers is an argument of run",
            ('run(..., dtype="float32")',), '[run]\ndtype = "float32"'),
    # Data and models.
    Meaning("dataset datasets train_data training_data trainset train_dataset train_set X y x_train X_train "
            "train_loader trainloader dataloader data_loader DataLoader data federated_dataset FederatedDataset "
            "TensorDataset",
            ("data",), DATA, ("Federation(..., data=(X, y))", "Federation(..., clients=[(X, y), (X, y)])"),
            '[data]\nkind = "digits"'),
    Meaning("test_data testset test_dataset test_set X_test y_test test_loader testloader val_data eval_data "
            "test",
            ("test",), "the test rows are an argument of the federation, or a share of a data set",
            ("Federation(..., test=(X, y))", "data.split(test=0.2)")),
    Meaning("val validation_split val_split val_size validation_fraction validation_data", ("validation",),
            "a share of each client's rows can be set aside", ("Federation(..., validation=0.2)",),
            "[federation]\nvalidation = 0.2"),
    Meaning("model net network module estimator nn model_fn model_class Net", ("problem", "module", "models"), MODEL,
            ("md.problems.Network(model)",), '[problem]\nkind = "Network"\nmodule = {kind = "mlp", inputs = 64, '
            "hidden = [32], outputs = 10}"),
    Meaning("loss criterion loss_fn loss_function loss_func objective CrossEntropyLoss", ("loss",),
            "the loss is part of the problem", ('md.problems.Network(model, loss="cross_entropy")',),
            '[problem]\nkind = "Network"\nloss = "cross_entropy"'),
    Meaning("n_classes num_classes", ("classes",), "the number of classes is an argument of the federation",
            ("Federation(..., classes=10)",), "[federation]\nclasses = 10"),
    Meaning("label labels target targets y_col label_col target_column", ("target", "y")),
    Meaning("partitioner split partitioning distribution heterogeneity", ("partition",),
            "a partition deals the rows to clients",
            ("Federation(..., partition=md.partitions.Dirichlet(clients=10, alpha=0.5))",),
            '[partition]\nkind = "Dirichlet"\nclients = 10\nalpha = 0.5'),
    Meaning("LogisticRegression SoftmaxRegression MultinomialLogisticRegression", ("Logistic Softmax", "Softmax"),
            "logistic regression is a problem, and an estimator in medley.sklearn",
            ("md.problems.Logistic(mu=0.1)", "md.problems.Softmax(mu=0.1)"), '[problem]\nkind = "Logistic"'),
    Meaning("logistic logit Bernoulli", ("binomial",)),
    Meaning("normal linear", ("gaussian",)),
    Meaning("ols logit lm regression linear_regression", ("glm",), "regressions across sites are of a study",
            ("Study(sites).glm('y ~ x', family='gaussian')",)),
    Meaning("mean std quantile tableone table_one value_counts summary", ("describe",)),
    Meaning("LinearRegression Ridge ridge_regression Linear linear", ("LeastSquares",), "ridge regression is a problem",
            ("md.problems.LeastSquares(mu=0.1)",), '[problem]\nkind = "LeastSquares"'),
    Meaning("read_csv from_csv load_csv CSV", ("csv",), "a reader of data reads CSV files", ("md.datasets.csv",)),
    Meaning("from_pandas from_dataframe DataFrame pandas", ("frame",), "a data set can be a frame",
            ("md.datasets.frame",)),
    Meaning("load_dataset huggingface hf", ("hub",), "a data set of Hugging Face has a reader", ("md.datasets.hub",)),
    Meaning("load_mnist", ("mnist",), "MNIST has a reader", ("md.datasets.mnist",)),
    Meaning("load_digits", ("digits",), "the digits have a reader", ("md.datasets.digits",)),
    Meaning("load_breast_cancer", ("breast_cancer",), "these rows have a reader", ("md.datasets.breast_cancer",)),
    Meaning("load_cifar10", ("cifar10",), "CIFAR-10 has a reader", ("md.datasets.cifar10",)),
    Meaning("make_classification make_blobs synthetic_data", ("gaussian_classes",), "synthetic rows have a maker",
            ("md.datasets.gaussian_classes(100, 4, 2)",), '[data]\nkind = "gaussian_classes"\nn = 100\nfeatures = 4\n'
            "classes = 2"),
    # What one does with them.
    Meaning("standardize normalize normalise scale StandardScaler", ("standardise",),
            "the features' means and deviations come from the training rows", ("data.split(0.2).standardise()",)),
    Meaning("train_test_split random_split", ("split",), "a data set has its own", ("data.split(0.2)",)),
    Meaning("plot draw savefig", (), "a result's curves are those of its frame, a comparison's in its page",
            ("result.frame().plot(x='round', y='loss')", "board.save('report.html')")),
    Meaning("ray multiprocessing processes", ("Ray", "Processes"), "a transport says where the clients run",
            ("run(..., transport=md.transports.Ray())", "run(..., transport=md.transports.Processes(workers=2))")),
    Meaning("fit run train start_simulation run_simulation simulate start start_server fit_transform partial_fit "
            "Trainer trainer learn Server ServerApp FederatedLearning", ("run",),
            "a run trains a method on a federation", ("md.run(md.FedAvg(), federation, rounds=10)",)),
    Meaning("Client NumPyClient ClientApp FlowerClient start_client client_fn Strategy", (), ONE_SIDED,
            ("md.run(md.FedAvg(), federation, rounds=10)",)),
    Meaning("predict predict_proba forward transform", ("predict",), "a result predicts",
            ("result.predict(X)", "result.outputs(X)")),
    Meaning("evaluate score eval validate accuracy_score evaluation metrics_distributed metrics_centralized",
            ("evaluation", "show"), "a result has the figures of its model, by name",
            ("result.evaluation", "result['accuracy']", "(result.predict(X) == y).mean()")),
    Meaning("losses losses_distributed losses_centralized history_ loss_curve_ loss_curve val_loss train_loss",
            ("loss", "history"), HISTORY, ("result['loss']",)),
    Meaning("coef_ coef weights_ params parameters get_params get_parameters get_weights state", ("x", "state_dict"),
            "a result has its parameters as one vector, and by name", ("result.x", "result.state_dict()")),
    Meaning("GridSearchCV grid_search RandomizedSearchCV hyperparameter_search", ("tune",), "tune tries settings",
            ("md.tune",)),
    Meaning("cross_validate benchmark", ("compare",), "compare runs several methods on several seeds",
            ("md.compare",)),
    Meaning("init create startproject", ("new",)),
    Meaning("version info", ("doctor",)),
    # Figures.
    Meaning("metrics metric accuracy acc top1", ("metric", "accuracy", "metrics"),
            "accuracy is in every result of a classifier; others have a name, or are functions of yours",
            ("result['accuracy']", "run(..., metrics=['auroc'])")),
    Meaning("roc_auc auc auroc roc_auc_score roc", ("auroc", "AUROC"), "the area under the ROC curve is a metric",
            ("run(..., metrics=['auroc'])",)),
    Meaning("f1 f1_score precision_score recall recall_score", (), "run takes a function of outputs and labels",
            ("run(..., metrics={'f1': (f1, 'max')})",)),
    # Methods.
    Meaning("strategies algorithms aggregators", ("methods",)),
    Meaning("partitioners", ("partitions",)),
    Meaning("FedOpt FedAdaptive AdaptiveFederatedOptimization", ("FedAdam FedYogi FedAdagrad",),
            "FedOpt is a family", ("md.FedAdam()", "md.FedYogi()", "md.FedAdagrad()")),
    Meaning("Fed_Avg FederatedAveraging federated_averaging FederatedAverage", ("FedAvg",), "the method is",
            ("md.FedAvg()",), '[[methods]]\nkind = "FedAvg"'),
    Meaning("proximal_mu prox_mu mu_prox proximal_term", ("mu",), "the proximal term is a method's",
            ("md.FedProx(mu=0.01)",), '[[methods]]\nkind = "FedProx"\nmu = 0.01'),
    Meaning("nu", ("mu",)),
    Meaning("mu", ("mu",), "the proximal term is a method's, and L2 regularisation part of the problem",
            ("md.FedProx(mu=0.01)", "md.problems.Softmax(mu=0.1)")),
    Meaning("FedSGD LocalSGD DSGD", (), "FedSGD is FedAvg with one step on all rows",
            ("Federation(..., pace=md.scenarios.Pace(steps=1, batch=None))",)),
    Meaning("PerFedAvg per_fedavg FedRecon FedPAC MAML pFedAvg Personalized", ("FedAvgFT pFedMe Ditto APFL",), PERSONAL,
            ("md.FedAvgFT()", "md.pFedMe()", "md.Ditto()", "md.APFL()")),
    Meaning("QFedAvg qffl AFL", (), "no method aggregates for fairness; how unequal clients fare stands in a result",
            ("result.clients",)),
    Meaning("FedMedian Median", ("Median",), "a robust aggregation rule goes around a method",
            ("md.Robust(md.FedAvg(), rule=md.robust.Median())",),
            '[[methods]]\nkind = "FedAvg"\nrule = {kind = "Median"}'),
    Meaning("Krum FedKrum num_malicious_clients num_malicious_nodes", ("Krum",),
            "a robust aggregation rule goes around a method",
            ("md.Robust(md.FedAvg(), rule=md.robust.Krum(byzantine=0.2))",),
            '[[methods]]\nkind = "FedAvg"\nrule = {kind = "Krum", byzantine = 0.2}'),
    Meaning("MultiKrum", ("MultiKrum",), "a robust aggregation rule goes around a method",
            ("md.Robust(md.FedAvg(), rule=md.robust.MultiKrum(byzantine=0.2))",),
            '[[methods]]\nkind = "FedAvg"\nrule = {kind = "MultiKrum", byzantine = 0.2}'),
    Meaning("TrimmedMean FedTrimmedAvg TrimmedAvg trim_mean", ("TrimmedMean",),
            "a robust aggregation rule goes around a method",
            ("md.Robust(md.FedAvg(), rule=md.robust.TrimmedMean(byzantine=0.2))",),
            '[[methods]]\nkind = "FedAvg"\nrule = {kind = "TrimmedMean", byzantine = 0.2}'),
    Meaning("Bulyan RFA GeoMed", ("GeometricMedian",), "of the robust aggregation rules the nearest is",
            ("md.Robust(md.FedAvg(), rule=md.robust.GeometricMedian())",),
            '[[methods]]\nkind = "FedAvg"\nrule = {kind = "GeometricMedian"}'),
    Meaning("num_byzantine n_byzantine f num_malicious malicious beta trim_ratio cut_fraction", ("byzantine",)),
    Meaning("DPFedAvg DPSGD DP_FedSGD DPFedAvgFixed DPFedAvgAdaptive DifferentialPrivacyServerSideFixedClipping Opacus "
            "PrivacyEngine DifferentialPrivacy dp", ("private",), "differential privacy goes around a method",
            ("md.Private(md.FedAvg(), noise=1.0, clip=1.0)",
             'md.Private(md.FedAvg(), noise=1.0, clip=1.0, unit="row")'),
            '[[methods]]\nkind = "FedAvg"\nprivate = {noise = 1.0, clip = 1.0}'),
    Meaning("noise_multiplier sigma noise_scale", ("noise",), "the noise is an argument of Private",
            ("md.Private(md.FedAvg(), noise=1.0, clip=1.0)",),
            '[[methods]]\nkind = "FedAvg"\nprivate = {noise = 1.0, clip = 1.0}'),
    Meaning("target_epsilon eps epsilon", ("epsilon",), "the budget is an argument of Private",
            ("md.Private(md.FedAvg(), epsilon=2.0, rounds=10)",),
            '[[methods]]\nkind = "FedAvg"\nprivate = {epsilon = 2.0, rounds = 10}'),
    Meaning("target_delta", ("delta",)),
    Meaning("SecAgg SecAggPlus SecureAggregation secure_aggregation", ("secure", "SecureSum"),
            "secure aggregation is an option of run", ("run(..., secure=md.SecureSum(bound=10.0))",),
            "[secure]\nbound = 10.0"),
    # Scenarios.
    Meaning("Pace", ("pace",), "the clients' pace is", ("Federation(..., pace=md.scenarios.Pace(lr=0.1))",),
            "[pace]\nlr = 0.1"),
    Meaning("IID IidPartitioner iid_partition", ("IID",), "the partition is",
            ("Federation(..., partition=md.partitions.IID(clients=10))",), '[partition]\nkind = "IID"\nclients = 10'),
    Meaning("Dirichlet DirichletPartitioner non_iid noniid lda label_skew dirichlet_alpha", ("Dirichlet",),
            "the partition is", ("Federation(..., partition=md.partitions.Dirichlet(clients=10, alpha=0.5))",),
            '[partition]\nkind = "Dirichlet"\nclients = 10\nalpha = 0.5'),
    Meaning("Shard Shards ShardPartitioner", ("Shards",), "the partition is",
            ("Federation(..., partition=md.partitions.Shards(clients=10, per_client=2))",),
            '[partition]\nkind = "Shards"\nclients = 10\nper_client = 2'),
    Meaning("PathologicalPartitioner Pathological num_classes_per_partition classes_per_client",
            ("Labels", "per_client"), "clients with a few labels each are",
            ("Federation(..., partition=md.partitions.Labels(clients=10, per_client=2))",),
            '[partition]\nkind = "Labels"\nclients = 10\nper_client = 2'),
    Meaning("NaturalIdPartitioner natural_id GroupedNaturalIdPartitioner by_column partition_by group_by groups",
            ("ByKey", "key"), "clients that a column of the data names are",
            ('Federation(..., partition=md.partitions.ByKey("hospital"))',),
            '[partition]\nkind = "ByKey"\nkey = "site"'),
    Meaning("SizePartitioner LinearPartitioner ExponentialPartitioner DistributionPartitioner quantity_skew",
            ("Quantity",), "clients of unequal size are",
            ("Federation(..., partition=md.partitions.Quantity(clients=10, alpha=1.0))",),
            '[partition]\nkind = "Quantity"\nclients = 10\nalpha = 1.0'),
    Meaning("min_partition_size min_size min_samples", ("minimum",)),
    # Codecs.
    Meaning("topk Sparsify sparsification top_k", ("TopK",), "the codec is",
            ("run(..., codec=md.codecs.TopK(fraction=0.1))",), '[codec]\nkind = "TopK"\nfraction = 0.1'),
    Meaning("QSGD int8 int4 quantize Quantizer Quantize signSGD PowerSGD quant", ("Quantise",),
            "of the codecs the nearest is", ("run(..., codec=md.codecs.Quantise(bits=8))",),
            '[codec]\nkind = "Quantise"\nbits = 8'),
    Meaning("fp16_compression half float16 Half", ("Cast",), "the codec is",
            ('run(..., codec=md.codecs.Cast("float16"))',), '[codec]\nkind = "Cast"\ndtype = "float16"'),
    Meaning("error_feedback ef", ("feedback",)),
)  # fmt: skip


def spelling(word: str) -> str:
    """A word without case, underscores and hyphens."""
    return re.sub(r"[^a-z0-9]", "", word.lower())


@cache
def _table() -> dict[str, list[Meaning]]:
    out: dict[str, list[Meaning]] = {}
    for meaning in MEANINGS:
        for word in dict.fromkeys(map(spelling, meaning.words.split())):
            out.setdefault(word, []).append(meaning)
    return out


CUTOFF = 0.6
"""The least similarity (difflib's ratio) of two spellings of one name. A word like no name gets no suggestion."""


def nearest(key: str, allowed: Iterable[str]) -> str:
    """ " Did you mean 'mu'?", with the name that means the same or the most similar one; empty if there is neither."""
    names = [*allowed]
    return _same(str(key), names, in_recipe=True) or _similar(str(key), names)


def meant(key: str, allowed: Iterable[str], in_recipe: bool = False) -> str:
    """`nearest`, or where Medley has what other libraries call so: for names of settings, methods and the like.

    Names that a user gives, such as columns, are in no table, so `nearest` alone fits them.
    """
    names = [*allowed]
    written_alike = [name for name in names if spelling(name) == spelling(str(key))]
    if written_alike:
        return f" Did you mean {written_alike[0]!r}?"
    return _same(str(key), names, in_recipe) or elsewhere(key, in_recipe) or _similar(str(key), names)


def elsewhere(key: str, in_recipe: bool = False) -> str:
    """Where Medley has what other libraries call so, " In Medley the seed is an argument of run: run(..., seed=1).".

    Empty if the word is not in the table.
    """
    for meaning in _table().get(spelling(str(key)), ()):
        if in_recipe and meaning.toml:
            return f" In a recipe {meaning.text}: {meaning.toml.replace(chr(10), ' ')}."
        if meaning.code:
            return f" In Medley {meaning.text}: {_either(meaning.code)}."
    return ""


def _same(key: str, allowed: Iterable[str], in_recipe: bool = False) -> str:
    """The allowed names that mean what other libraries call ``key``; in Python with an example, if it is one thing."""
    # Recipes use lower case and classes do not, so ignore case.
    spelt = {name.lower(): name for name in allowed}
    for meaning in _table().get(spelling(key), ()):
        if meaning.unless and meaning.unless in spelt:
            continue
        for group in meaning.names:
            names = [spelt.get(name.lower(), "") for name in group.split()]
            if all(names):
                examples = [code for code in meaning.code if re.search(rf"\b{names[0]}(?:[=(]|$)", code)]
                example = f", as in {examples[0]}" if examples and len(names) == 1 and not in_recipe else ""
                return f" Did you mean {_either(map(repr, names))}{example}?"
    return ""


def _similar(key: str, allowed: Iterable[str]) -> str:
    spelt = {name.lower(): name for name in allowed}
    near = difflib.get_close_matches(key.lower(), spelt, n=1, cutoff=CUTOFF)
    return f" Did you mean {spelt[near[0]]!r}?" if near else ""


def _either(texts: Iterable[str]) -> str:
    """ "'a', 'b' or 'c'"."""
    *most, last = texts
    return f"{', '.join(most)} or {last}" if most else last
