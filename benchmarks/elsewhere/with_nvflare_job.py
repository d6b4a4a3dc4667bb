"""The job that runs with_nvflare.py at four hospitals; NVFlare's server saves the model."""

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from with_nvflare import network

if __name__ == "__main__":
    recipe = FedAvgRecipe(
        name="digits", min_clients=4, num_rounds=3, initial_model=network(), train_script="with_nvflare.py"
    )
    recipe.execute(SimEnv(num_clients=4))
