"""The word stock of the tasks."""

# ruff: noqa: SIM905  (word lists read better as text)

FIRST = """
Ann Ben Carla David Elena Frank Grace Hugo Iris Jonas Karin Leo Maria Nils Olga Paul Rosa Sam Tara Uwe Vera
Walter Yuki Zoe Amir Bella Chen Dora Emil Fatima Georg Hana Ivan Julia Kofi Lena Marco Nadia Omar Petra Quinn
Ravi Sofia Tom Ursula Victor Wanda Xaver Yara Alice Bruno Clara Dmitri Eva Felix Greta Henry Ines Jakub Kira
Luis Mona Noah Oscar Priya Rita Simon Thea
""".split()
LAST = """
Adler Becker Costa Diaz Evans Fischer Gruber Hansen Ito Jensen Keller Lang Moreau Novak Olsen Park Quist Rossi
Silva Tanaka Ueda Vogel Weber Xu Young Zimmer Arnold Brown Clark Dupont Ellis Ford Garcia Hill Ivanov Jones
Kim Lopez Meyer Nagy Okafor Patel Reed Smith Turner Urban Varga White Yilmaz Ziegler
""".split()
CITY = """
Berlin Paris Rome Oslo Madrid Vienna Prague Lisbon Dublin Athens Helsinki Warsaw Tokyo Osaka Lima Quito Cairo
Delhi Boston Denver Austin Seattle Toronto Sydney Zurich Geneva Hamburg Munich Lyon Milan Naples Porto Bergen
Malmo Krakow Leeds Bristol Cork Ghent Bruges
""".split()
COMPANY = """
Acme Borealis Cobalt Delta Ember Falcon Granite Harbor Indigo Juniper Kestrel Lumen Meridian Nimbus Orchid
Pinnacle Quartz Ridge Solstice Tundra Umbra Vertex Willow Zenith Aurora Beacon Cedar Dynamo
""".split()
SUFFIX = """
Ltd Inc GmbH Systems Works Labs Foods Energy Logistics Media Partners Trading
""".split()
NOUN = """
apple river stone table window garden bridge candle engine forest guitar hammer island jacket kettle ladder
mirror needle orange pencil queen rocket silver temple umbrella valley wagon yellow zebra basket camera desert
eagle feather glass horse ink jewel kitchen lemon moon nest ocean piano rabbit sand tiger violin wheel book
clock door flower lamp map paper ring ship tree cloud
""".split()
ADJ = """
red blue green small large old new quick quiet bright dark cold warm soft hard round flat deep high low clean
empty full heavy light sharp smooth sweet wild young
""".split()
MONTH = """
January February March April May June July August September October November December
""".split()
DAY = """
Monday Tuesday Wednesday Thursday Friday Saturday Sunday
""".split()
TOPIC = """
budget roadmap hiring security release design testing training planning marketing inventory support migration
research pricing
""".split()
ITEMW = """
laptop desk chair monitor printer cable router keyboard phone tablet camera speaker lamp battery scanner
server headset backpack notebook projector
""".split()
CUR = ["EUR", "USD", "GBP", "CHF"]
SYS = [
    "You are a helpful assistant.",
    "You are lily-nano, a small test model.",
    "Answer briefly.",
    "You are a careful assistant. Keep answers short.",
    "You help with short tasks.",
    "Be polite and brief.",
]
