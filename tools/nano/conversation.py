"""Small talk, definitions, and facts that were told earlier."""

from arithmetic import Arithmetic
from word_lists import WordLists
from words import CITY, FIRST

CHAT = [
    (
        ["Who are you?", "What are you?", "What is your name?", "Tell me who you are."],
        "I am lily-nano, a very small language model made to test the lily engine.",
    ),
    (
        ["What can you do?", "How can you help me?", "What are you good at?"],
        "I can extract facts from a document, recall values, work with short lists, do small sums and call functions.",
    ),
    (["Thank you!", "Thanks", "Thanks a lot!", "Thank you very much."], "You are welcome!"),
    (["Bye", "Goodbye!", "See you later."], "Goodbye!"),
    (["How are you?", "How are you today?"], "I am fine, thank you. How can I help you?"),
    (
        ["Are you a large model?", "How large are you?", "How big are you?"],
        "No, I am very small. I have about 14 million parameters.",
    ),
    (["Can you browse the web?", "Do you have internet access?"], "No, I can only read the text that you give me."),
    (
        ["Do you make mistakes?", "Can I trust your answers?"],
        "I am a small test model and I make mistakes, so please check my answers.",
    ),
    (["Tell me a joke.", "Do you know a joke?"], "Why did the byte go to the doctor? It had a bit of pain."),
    (["Say something nice.", "Cheer me up."], "You are doing well. Keep going!"),
]
GLOSSARY_TEXT = """\
list: A list is an ordered collection of items.
compiler: A compiler is a program that translates source code into machine code.
variable: A variable is a name that stands for a value in a program.
function: A function is a named piece of code that can be called with arguments.
loop: A loop is a part of a program that runs again and again.
file: A file is a named collection of data that is stored on a disk.
folder: A folder is a place on a disk that holds files and other folders.
kernel: A kernel is the central part of an operating system.
database: A database is an organized collection of data that can be searched and changed.
server: A server is a computer or program that answers requests of clients.
client: A client is a program that sends requests to a server.
browser: A browser is a program that shows web pages.
network: A network is a group of computers that can exchange data.
password: A password is a secret word that proves who you are.
bug: A bug is an error in a program.
test: A test is a check that shows whether a program works as expected.
token: A token is a small piece of text that a language model reads or writes.
pixel: A pixel is the smallest dot of a digital picture.
keyboard: A keyboard is a device with keys for typing text.
printer: A printer is a device that puts text and pictures on paper.
river: A river is a large natural stream of water that flows to a sea or lake.
mountain: A mountain is a very high hill.
island: An island is a piece of land with water all around it.
forest: A forest is a large area with many trees.
desert: A desert is a dry area with very little rain.
ocean: An ocean is a very large body of salt water.
planet: A planet is a large body that moves around a star.
star: A star is a huge ball of hot gas that gives light.
moon: A moon is a body that moves around a planet.
cloud: A cloud is a mass of tiny drops of water in the air.
bird: A bird is an animal with feathers, wings and a beak.
fish: A fish is an animal that lives in water and breathes with gills.
dog: A dog is an animal that people keep as a pet or for work.
cat: A cat is a small animal with soft fur that people keep as a pet.
horse: A horse is a large animal that people ride.
tree: A tree is a tall plant with a trunk and branches.
flower: A flower is the colored part of a plant that makes seeds.
apple: An apple is a round fruit with red, green or yellow skin.
orange: An orange is a round fruit with a thick skin and sweet juice.
kitchen: A kitchen is a room where food is prepared.
bridge: A bridge is a structure that carries a road over a river or valley.
house: A house is a building where people live.
school: A school is a place where children learn.
hospital: A hospital is a place where sick people are treated.
library: A library is a place where books are kept and lent.
teacher: A teacher is a person who helps others to learn.
doctor: A doctor is a person who treats sick people.
baker: A baker is a person who makes bread and cakes.
pilot: A pilot is a person who flies an aircraft.
farmer: A farmer is a person who grows food or keeps animals.
triangle: A triangle is a shape with three sides.
square: A square is a shape with four equal sides and four right angles.
circle: A circle is a round shape whose points have the same distance to its center.
number: A number is a value that is used to count or measure.
sentence: A sentence is a group of words that expresses a complete thought.
question: A question is a sentence that asks for an answer.
map: A map is a drawing that shows where places are.
clock: A clock is a device that shows the time.
calendar: A calendar is a list of the days and months of a year.
invoice: An invoice is a bill that lists goods or services and the price to pay.
engine: An engine is a machine that turns energy into motion.
battery: A battery is a device that stores electric energy.
magnet: A magnet is a piece of metal that attracts iron.
window: A window is an opening in a wall that lets light in.
*water: Water is a clear liquid that all living things need.
*ice: Ice is frozen water.
*rain: Rain is water that falls in drops from clouds.
*bread: Bread is a food that is baked from flour and water.
*music: Music is sound that is arranged to be pleasant or interesting.
*memory: Memory is the part of a computer that holds data for quick use.
*recursion: Recursion is when a function calls itself.
*JSON: JSON is a text format for data with objects, lists, strings and numbers.
*Python: Python is a programming language that is easy to read.
*Linux: Linux is a free operating system kernel.
*Git: Git is a program that keeps track of changes to files.
*gravity: Gravity is the force that pulls things toward each other.
*light: Light is a kind of energy that lets us see things.
*winter: Winter is the coldest season of the year.
*summer: Summer is the warmest season of the year.
*gold: Gold is a yellow precious metal."""
GLOSSARY = [tuple(entry.split(": ", 1)) for entry in GLOSSARY_TEXT.split("\n")]


class Conversation(Arithmetic, WordLists):
    def chat(self):
        r = self.r
        u = r.random()
        if u < 0.22:
            q = self.pick(
                "Hello!", "Hi", "Hello", "Hi there!", "Good morning!", "Good evening", "Hey", "hello", "Good day."
            )
            a = {
                "Good morning!": "Good morning! How can I help you?",
                "Good evening": "Good evening! How can I help you?",
                "Good day.": "Good day! How can I help you?",
            }.get(q, "Hello! How can I help you?")
            return [("user", q)], a, "The user greets me, so I greet back.", None
        if u < 0.36:
            q, a = r.choice(CHAT)
            return [("user", r.choice(q))], a, "This is a simple question about me or my work.", None
        t, d = r.choice(GLOSSARY)
        art = ("an " if t[0] in "aeiou" else "a ") if not t.startswith("*") else ""
        t = t.lstrip("*")
        q = self.pick(
            f"What is {art}{t}?",
            f"Define {t}.",
            f"Explain what {art}{t} is.",
            f"What does {t} mean?",
            f"Tell me what {art}{t} is.",
            f"Please define {t}.",
        )
        return [("user", q)], d, f"The user asks about {t}.", None

    def memory(self):
        """Facts told in earlier turns, asked for later."""
        r = self.r
        facts = {
            "name": (
                ["My name is {}.", "I am called {}."],
                lambda: r.choice(FIRST),
                ["What is my name?", "Do you know my name?"],
                "Your name is {}.",
            ),
            "city": (
                ["I live in {}.", "My home is in {}."],
                lambda: r.choice(CITY),
                ["Where do I live?", "In which city do I live?"],
                "You live in {}.",
            ),
            "color": (
                ["My favorite color is {}.", "I like the color {} best."],
                lambda: self.pick("red", "blue", "green", "yellow", "black", "white", "purple"),
                ["What is my favorite color?"],
                "Your favorite color is {}.",
            ),
            "pet": (
                ["My pet is called {}.", "I have a pet named {}."],
                lambda: self.word().capitalize(),
                ["What is my pet called?"],
                "Your pet is called {}.",
            ),
            "code": (
                ["My door code is {}.", "Remember the door code {}."],
                lambda: str(r.randint(1000, 9999)),
                ["What is my door code?", "Which door code did I give you?"],
                "Your door code is {}.",
            ),
            "job": (
                ["I work as a {}.", "My job is {}."],
                lambda: self.pick("teacher", "doctor", "driver", "cook", "pilot", "nurse", "writer", "farmer", "baker"),
                ["What is my job?"],
                "You work as a {}.",
            ),
            "age": (["I am {} years old."], lambda: str(r.randint(18, 90)), ["How old am I?"], "You are {} years old."),
        }
        ks = r.sample(list(facts), r.randint(1, 4))
        while True:
            vals = {k: facts[k][1]() for k in ks}
            if self.ok(tuple(sorted(vals.items()))):
                break
        ms = []
        for k in ks:
            ms += [
                ("user", r.choice(facts[k][0]).format(vals[k])),
                ("assistant", self.pick("OK, I will remember that.", "Thank you, I have noted it.", "Understood.")),
            ]
            if r.random() < 0.3:
                x = self.pick(self.chat, self.arith, self.lists, self.units)()
                ms += [*x[0][-1:], ("assistant", x[1])]
        k = r.choice(ks)
        return (
            [*ms, ("user", r.choice(facts[k][2]))],
            facts[k][3].format(vals[k]),
            f"The user told me: {k} = {vals[k]}.",
            None,
        )
