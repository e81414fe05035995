"""A model from the Hugging Face hub, put where the course finds it:  lab get OWNER/NAME

Only what this floor reads is fetched: config, tokenizer and safetensors.
The config comes first, so that a model that the course cannot run costs no gigabytes.
"""

import re
from typing import Annotated

import typer

from lab import device
from lab.course import CourseError
from lab.terminal import main
from layer2_graph.checkpoint import Tokenizer, files_of
from layer2_graph.config import ModelError, read_config
from layer2_graph.generate import IGNORE

CONFIG = "config.json"
FILES = (CONFIG, "generation_config.json", "tokenizer*.json", "special_tokens_map.json",
         "chat_template.jinja", "model*.safetensors", "model.safetensors.index.json")
NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def fetch(name, folder, ignore=()):
    """Put a model's files into a folder; -> the revision.
    ModelError if it cannot be run.

    An interrupted download is resumed.
    Files of an earlier revision that this one lacks are deleted.
    CourseError if the hub cannot be reached.
    """
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import HFValidationError, HTTPError, RepositoryNotFoundError

    hub = constants.ENDPOINT
    try:
        revision = HfApi().model_info(name).sha
        snapshot_download(name, revision=revision, local_dir=folder, allow_patterns=[CONFIG])
        read_config(folder, ignore)
        snapshot_download(name, revision=revision, local_dir=folder, allow_patterns=list(FILES))
        remove_others(folder, HfApi().list_repo_files(name, revision=revision))
    except HFValidationError as error:
        raise CourseError(f"expected OWNER/NAME by the hub's rules, found {name!r}: "
                          f"{error}") from None
    except RepositoryNotFoundError:
        raise CourseError(f"{hub} has no model {name}: it does not exist, or needs an account "
                          f"(`hf auth login`) or your consent on its page") from None
    except (OSError, HTTPError) as error:
        why = next(iter(str(error).splitlines()), "no reason given")
        raise CourseError(f"cannot fetch {name} from {hub} ({type(error).__name__}: {why}). Its "
                          f"files copied by hand into any folder work too: "
                          f"python -m layer2_graph.generate --model FOLDER") from None
    return revision


def remove_others(folder, names):
    """Delete what the course would read and these names lack: left by an earlier revision."""
    for path in [path for pattern in FILES for path in folder.glob(pattern)]:
        if path.name not in names:
            path.unlink()


@app.command()
def get(model: Annotated[str, typer.Argument(metavar="OWNER/NAME")], ignore: IGNORE = None):
    """Fetch a model from the Hugging Face hub.
    The course checks that it can run it."""
    if not NAME.fullmatch(model):
        raise CourseError(f"expected OWNER/NAME, such as HuggingFaceTB/SmolLM2-135M; "
                          f"found {model!r}")
    folder = device.cache_folder() / "models" / model
    try:
        revision = fetch(model, folder, ignore or ())
        Tokenizer(folder, read_config(folder, ignore or ()))
        files_of(folder)
    except ModelError as error:
        raise CourseError(str(error)) from None
    print(f"{folder}\nrevision {revision}: config, tokenizer and weight files are complete. Next: "
          f"python -m layer2_graph.generate --model {folder}"
          + "".join(f" --ignore-config {key}" for key in ignore or ()))


if __name__ == "__main__":
    main(app, "get")
