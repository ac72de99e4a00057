"""The paper's experiments, one command each, with the answer written down whatever it is.

    python benchmarks/reproduce.py jena-beta            figure 3a
    python benchmarks/reproduce.py sst2-depth           figure 3b
    python benchmarks/reproduce.py rank-collapse        the collapse regime of attention
    python benchmarks/reproduce.py certificate          the theorem's bound against measured rates
    python benchmarks/reproduce.py all --quick          everything, in minutes

The full runs take from seconds (rank-collapse) to about half an hour (jena-beta, sst2-depth) on one
free core; set OMP_NUM_THREADS=1, the models are small. Each experiment prints tables and writes a
JSON file with settings, seeds and versions, and a figure, into ``benchmarks/results``. The data are
looked for in ``--data``, then in the folder named by the environment variable SKLEARN_RESTF_DATA;
an experiment whose data are absent is skipped.
"""

import argparse
import importlib
import sys

from _reproduce_common import DataMissing

EXPERIMENTS = {
    "jena-beta": "_reproduce_jena",
    "sst2-depth": "_reproduce_sst2",
    "rank-collapse": "_reproduce_collapse",
    "certificate": "_reproduce_certificate",
}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", choices=[*EXPERIMENTS, "all"])
    parser.add_argument("--quick", action="store_true", help="a minute or two each")
    parser.add_argument("--data", help="folder of the data (or the Jena file itself)")
    parser.add_argument("--output", help="folder of the results (default: benchmarks/results)")
    parser.add_argument("--seeds", type=int, help="number of seeds or instances")
    parser.add_argument("--gpt2", help="folder of a GPT-2 model, for sst2-depth")
    parser.add_argument("--minilm", help="folder of a MiniLM model, for sst2-depth")
    arguments = parser.parse_args(argv)
    wanted = list(EXPERIMENTS) if arguments.experiment == "all" else [arguments.experiment]
    for name in wanted:
        print(f"\n=== {name}{' (quick)' if arguments.quick else ''} ===")
        try:
            importlib.import_module(EXPERIMENTS[name]).run(arguments)
        except DataMissing as missing:
            print(f"SKIPPED {name}: {missing}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
