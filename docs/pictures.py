"""`python docs/pictures.py`: Alice's SCM and the paper's Figure 1, as the pages show them."""

from pathlib import Path

from coulda.experiments import alice, figure_1

FOLDER = Path(__file__).parent / "_static"

if __name__ == "__main__":
    for path in (*alice.draw(FOLDER), *figure_1.draw(FOLDER)):
        print(path)
