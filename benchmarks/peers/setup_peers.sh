#!/usr/bin/env bash
# Set up the peers that compare.py and cold_start.py measure, each in an environment of its own.
#   setup_peers.sh [llama] [openvino]      (default: both; finished parts are kept)
# TWOSTROKE_PEERS: the folder, default .venvs/peers. MODEL: the GGUF file to convert for OpenVINO and
# transformers, default the sample model. llama.cpp is compiled from its sdist with its default flags for
# this machine (10-20 minutes).
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
peers="${TWOSTROKE_PEERS:-$root/.venvs/peers}"
cache="${TWOSTROKE_CACHE:-$HOME/.cache/twostroke}"
model="${MODEL:-$cache/models/smollm2-135m-instruct-q4_1.gguf}"
python="${PYTHON:-python3}"

environment() { # NAME: install it from requirements/peer-NAME.txt
    local folder="$peers/$1"
    [ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
    bash "$root/.ci/install" "$folder/bin/python" "peer-$1"
}

llama_requirement() { # the lines of the lock that say which source, with its hashes
    sed -n '/^llama-cpp-python==/,/[^\\]$/p' "$root/requirements/peer-llama.txt"
}

setup_probe() {
    mkdir -p "$peers"
    "${CXX:-g++}" -O3 -march=native -pthread "$here/read_probe.cpp" -o "$peers/read_probe"
}

setup_llama() {
    environment llama
    local scratch libraries
    scratch="$(mktemp -d)"
    "$peers/llama/bin/python" -m pip download --quiet --no-deps --no-build-isolation \
        --no-binary llama-cpp-python --require-hashes --dest "$scratch" \
        -r <(llama_requirement)
    tar -xzf "$scratch"/llama_cpp_python-*.tar.gz -C "$scratch" --strip-components=1 \
        --wildcards '*/vendor/llama.cpp/include/*' '*/vendor/llama.cpp/ggml/include/*'
    libraries="$("$peers/llama/bin/python" -c \
        'import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec("llama_cpp").origin).parent / "lib")')"
    "${CXX:-g++}" -std=c++17 -O2 "$here/cold_llamacpp.cpp" -o "$peers/cold_llamacpp" \
        -I"$scratch/vendor/llama.cpp/include" -I"$scratch/vendor/llama.cpp/ggml/include" \
        -L"$libraries" -lllama -lggml -lggml-base -Wl,-rpath,"$libraries" \
        -Wl,-rpath-link,"$libraries"
    rm -rf "$scratch"
}

export_openvino() { # FOLDER FORMAT OPTION...
    local folder="$1" format="$2"
    shift 2
    [ -f "$folder/ov-$format/openvino_model.xml" ] ||
        "$peers/openvino/bin/optimum-cli" export openvino --model "$folder/hf" "$@" \
            --task text-generation-with-past --weight-format "$format" "$folder/ov-$format"
}

setup_openvino() {
    environment openvino
    # optimum brings torchvision, which nothing here uses; beside another build of torch transformers fails to import.
    "$peers/openvino/bin/python" -m pip uninstall --quiet --yes torchvision
    local folder
    folder="$peers/models/$(basename "$model" .gguf)"
    [ -f "$folder/hf/config.json" ] ||
        "$peers/openvino/bin/python" "$here/make_hf_model.py" "$model" "$folder/hf"
    export_openvino "$folder" int8
    export_openvino "$folder" int4 --group-size 64 # its default 128 does not divide SmolLM2's 576
}

setup_probe
[ $# -gt 0 ] || set -- llama openvino
for peer in "$@"; do
    case "$peer" in
        llama | openvino) "setup_$peer" ;;
        *) echo "unknown peer $peer: llama or openvino" >&2 && exit 2 ;;
    esac
done
