"""The tiles of PO-Sokoban as SVG, in the colors of Figure 3: walls red, boxes yellow, targets blue, the agent green."""

from coulda.environments.sokoban import tiles
from coulda.report.contents import Tile

_WALL = (
    '<rect width="32" height="32" fill="#b04a3e"/>'
    '<path d="M0 1.5h32M0 17.5h32" stroke="#c46052" stroke-width="3"/>'
    '<path d="M0 15.2h32M0 31.2h32M8 0v15M24 16v15" stroke="#8a362e" stroke-width="1.6"/>'
)
_BOX = (
    '<rect x="3.5" y="3.5" width="25" height="25" rx="3" fill="#b07a18"/>'
    '<rect x="5" y="5" width="22" height="22" rx="2" fill="#ecb43a"/>'
    '<rect x="8" y="8" width="16" height="16" rx="1" fill="#fad474"/>'
    '<path d="M9.5 9.5l13 13M22.5 9.5l-13 13" stroke="#b07a18" stroke-width="2.6"/>'
)
_BADGE = '<circle cx="16" cy="16" r="6.6" fill="#fff"/><circle cx="16" cy="16" r="5.2" fill="#366cbe"/>'
_TARGET = (
    '<circle cx="16" cy="16" r="11.4" fill="#a0bee8" stroke="#366cbe" stroke-width="2.8"/>'
    '<circle cx="16" cy="16" r="4.2" fill="#366cbe"/>'
)
_AGENT = (
    '<circle cx="16" cy="16" r="10" fill="#469e5c" stroke="#28683a" stroke-width="1.8"/>'
    '<circle cx="12.8" cy="14" r="2.5" fill="#fff"/><circle cx="19.2" cy="14" r="2.5" fill="#fff"/>'
    '<circle cx="12.8" cy="14.4" r="1.2" fill="#46423c"/><circle cx="19.2" cy="14.4" r="1.2" fill="#46423c"/>'
)
_SPECK = '<circle cx="16" cy="16" r="1.1" fill="#8886" />'
_FOG = '<rect width="32" height="32" fill="#8a8f9c" fill-opacity=".34"/>'

_DRAWN = {
    tiles.EMPTY: ("empty", _SPECK),
    tiles.WALL: ("wall", _WALL),
    tiles.BOX: ("box", _BOX),
    tiles.TARGET: ("target", _TARGET),
    tiles.AGENT: ("agent", _AGENT),
    tiles.BOX_ON_TARGET: ("box on target", _TARGET + _BOX + _BADGE),
    tiles.AGENT_ON_TARGET: ("agent on target", _TARGET + _AGENT),
}

SOKOBAN_TILES = (*(Tile(*_DRAWN[number]) for number in range(tiles.NUM_TILES)), Tile("empty or hidden", _FOG))
"""The tiles by number; the last is what an observation shows where a tile is empty, or masked."""
