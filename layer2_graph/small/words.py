"""The words and sentences that the grammar of stories.py is made of.

A text is a choice: | separates its alternatives.
In lists of single words a space does.

In a sentence {n} is the noun, and {it} {they} {was} agree with it in number. {hero} {he} {him}
{his} and {friend} {friend_him} are the people of the story, {place} where it happens and
{a_thing} the noun with its adjective, the same from the first sentence to the last. <symbol> is
expanded further.
"""

GIRLS = """
    Mira Anna Lena Nora Ida Ruth Clara Ella Tess Maya Lucy Emma Rosa Vera Hanna Zoe Alma Greta
    Ivy Mina Sara Olga Nina Paula Eva Dora Lola Flora June Hazel Irma Celia Laura Marta Edith
    Wanda Tilda Jana Romy Selma Thea Yara Amina Leila Priya Mei Yuki Ines Carla Bianca Sofia
    Elsa Freya Astrid Linnea Agnes Judith Salma Noor Petra Kaja Orla Maeve Fiona Bella Daisy
    Poppy Violet Iris Lily"""
BOYS = """
    Tom Ben Max Leo Paul Finn Otto Emil Hugo Karl Noah Theo Jonas Oskar Felix Anton Simon Lukas
    Peter Hans Arno Bruno Erik Ivan Jakob Klaus Liam Milo Nils Omar Pablo Quinn Ravi Sven Tariq
    Ulf Viktor Walter Yusuf Zeno Adam Boris Caleb David Elias Frank Gustav Henry Igor Joel Kenji
    Luis Marco Nico Owen Philip Ralf Samir Tobias Umar Victor Wim Xavier Abel Basil Cyril Dario
    Edgar Fritz"""
PEOPLE = """
    baker farmer sailor tailor miller gardener teacher painter carpenter shepherd fisher
    clockmaker librarian potter weaver blacksmith cook doctor musician postman beekeeper
    glassblower shoemaker lighthouse-keeper ferryman student dancer printer juggler scribe"""
ANIMALS = """
    fox owl bear rabbit mouse hedgehog badger crow frog goose otter squirrel turtle wolf cat
    mole sparrow lynx beaver heron"""

TRAITS = {      # trait -> what such a person does, and what the story teaches
    "curious": ("{he} asked a question about everything", "whoever asks will learn"),
    "patient": ("{he} never hurried", "good things take time"),
    "brave": ("{he} was not afraid of the dark", "courage grows when it is used"),
    "shy": ("{he} spoke only in a whisper", "a quiet voice can be heard too"),
    "clever": ("{he} could solve every riddle", "thinking first saves work later"),
    "lazy": ("{he} slept until noon", "a little work today saves much work tomorrow"),
    "kind": ("{he} always had time for others", "kindness comes back in the end"),
    "proud": ("{he} did not like to ask for help", "it is wise to ask for help"),
    "careless": ("{he} forgot one thing or another every day", "care is cheaper than repair"),
    "honest": ("{he} had never told a lie", "the truth is the shortest way"),
    "greedy": ("{he} always wanted more", "what is shared is worth twice as much"),
    "cheerful": ("{he} sang from morning to night", "a song makes the road shorter"),
    "stubborn": ("{he} never gave up", "those who keep trying will find a way"),
    "lonely": ("{he} wished for somebody to talk to", "a friend is worth more than gold"),
    "generous": ("{he} gave away half of everything", "a gift makes two people happy"),
    "restless": ("{he} could not sit still", "the best place may be the one where you are"),
    "thoughtful": ("{he} looked twice before {he} did anything", "small things matter"),
    "hasty": ("{he} ran wherever {he} could walk", "haste makes waste"),
    "grumpy": ("{he} complained about the weather every morning", "a smile costs nothing"),
    "dreamy": ("{he} watched the clouds all day", "dreams need hands as well"),
}

PLACES = {      # kind -> places, and what is seen there
    "water": ("""at the harbour|by the river|on the beach|at the lake|by the pond|at the old mill|
        on the island|at the ferry|by the waterfall|under the bridge|at the lighthouse|
        by the canal""",
        """The water was as smooth as glass|Small waves ran up to the stones|A boat went slowly by|
        The gulls cried above the water|A fish jumped and was gone|The reeds bent in the wind"""),
    "wood": ("""in the forest|at the edge of the wood|under the old oak|in the valley|
        in the clearing|by the hollow tree|on the forest path|at the hunter's hut|
        in the pine grove|by the fallen tree""",
        """The leaves rustled overhead|A woodpecker knocked on a tree|
        It smelled of moss and mushrooms|The light fell green through the branches|
        A deer looked up and ran away|Somewhere an owl called"""),
    "town": ("""at the market|in the square|by the town hall|in the library|at the station|
        at the school|in the narrow street|at the bakery|by the clock tower|in the museum|
        at the post office|at the inn""",
        """People hurried past with their bags|The bells rang from the tower|
        A dog slept on the steps|A cart rolled over the stones|
        Somebody played a song at the corner|The lamps were being lit"""),
    "farm": ("""on the farm|in the barn|in the orchard|in the meadow|in the garden|
        behind the stable|in the field|at the well|by the haystack|in the vineyard|
        at the wooden gate""",
        """The hens scratched in the dust|Bees went from flower to flower|
        The grass was high and wet|A cow looked over the fence|The apples were almost ripe|
        A cat watched from the wall"""),
    "hill": ("""on the hill|in the mountains|by the cave|at the ruined castle|on the high meadow|
        at the pass|by the stone tower|on the cliff|at the quarry|by the spring""",
        """The wind blew hard up there|Clouds hung below the path|An eagle circled in the sky|
        Far below lay the roofs of the village|A stone rolled down the slope|
        The snow had just melted"""),
    "home": ("""in the kitchen|in the attic|on the stairs|in the cellar|in the workshop|
        by the fire|in the little house|at the window|in the courtyard|on the balcony""",
        """The kettle sang on the stove|Dust danced in the light|The clock ticked on the wall|
        Rain ran down the window|A candle burned on the table|The floor creaked at every step"""),
}

# class -> nouns (those with * are plural), adjectives, uses, kinds of trouble
THINGS = {
    "toy": ("kite ball doll puppet drum top yo-yo marbles* whistle train dice* balloon",
        "red blue yellow green striped wooden painted little old new shiny round",
        """play with the {n}|show the {n} to everybody|sleep beside the {n}|
        take the {n} everywhere|give the {n} a name""", "lost broken stuck stolen"),
    "tool": ("hammer saw lantern ladder spade axe bucket rope scissors* needle broom wheelbarrow "
             "pliers* compass",
        "heavy rusty sharp old iron new strong borrowed long useful well-worn",
        """work with the {n}|build things with the {n}|lend the {n} to the neighbours|
        clean the {n}|teach others to use the {n}""", "lost broken dirty borrowed"),
    "music": ("flute violin trumpet harp guitar bell accordion piano horn cello",
        "silver old golden cracked fine little wooden borrowed famous new",
        """play the {n}|practise on the {n}|play a slow song on the {n}|tune the {n}|
        dance while somebody played the {n}""", "broken wet stolen borrowed"),
    "book": ("book map letter diary newspaper atlas notebook painting photograph poem drawings* "
             "cards*",
        "thick thin old secret torn yellow famous little precious long unfinished",
        """look at the {n}|copy the {n}|hide the {n} under the bed|study the {n}|
        think about the {n}""", "lost wet stolen torn"),
    "cloth": ("coat hat scarf shawl boots* gloves* blanket shirt dress cape socks* apron sail flag",
        "warm red blue woollen patched new grey soft long silk green fine",
        """wear the {n}|wash the {n}|keep the {n} in a chest|mend the {n}|be proud of the {n}""",
        "lost wet torn dirty"),
    "food": ("cake bread soup pie cheese honey apples* pears* cherries* pancakes* nuts* jam plums* "
             "sausages*",
        "sweet fresh warm big tasty famous golden ripe good last",
        """eat the {n}|share the {n}|sell the {n}|smell the {n}|keep the {n} for the winter""",
        "stolen burnt lost spoiled"),
    "animal": ("dog cat goat pony donkey hen duck parrot lamb cow calf rabbit pigeon goose",
        "small black white spotted brown young old tame clever hungry noisy gentle",
        """feed the {n}|walk with the {n}|brush the {n}|talk to the {n}|
        teach the {n} a trick""",
        "lost stuck ill frightened"),
    "plant": ("rose tree tulips* sunflower pumpkin beans* vine lemon-tree strawberries* fern "
              "cactus orchid",
        "small tall rare yellow young wild red beautiful thirsty crooked",
        """water the {n}|measure the {n}|sing to the {n}|sit beside the {n}|draw the {n}""",
        "ill frozen broken stolen"),
    "vehicle": ("bicycle boat cart sledge raft carriage wagon canoe balloon-basket scooter",
        "fast old green little wooden new red squeaky leaky borrowed",
        """ride about with the {n}|paint the {n}|race with the {n}|carry things with the {n}|
        polish the {n}""", "broken stuck stolen borrowed"),
    "dish": ("cup bowl teapot jug plate kettle glass vase spoon pan",
        "blue white china silver chipped old tall fine little copper",
        """drink tea beside the {n}|put the {n} on the table|wash the {n}|use the {n} on Sundays|
        lend the {n} to guests""", "broken dirty lost stolen"),
    "treasure": ("ring coin key watch necklace pearl crown shell stone medal coins* box",
        "golden tiny silver strange lucky old precious heavy shiny hidden",
        """count the {n}|polish the {n}|hold the {n} up to the light|hide the {n}|
        dream about the {n}""", "lost stolen stuck dirty"),
    "machine": ("clock radio telescope engine lamp camera robot typewriter printing-press computer "
                "pump loom",
        "new old noisy clever broken-down huge simple modern strange slow",
        """repair the {n}|run the {n}|explain the {n}|oil the {n}|improve the {n}""",
        "broken dirty wet borrowed"),
}

# trouble -> how it came, what caused it, what helped, what followed
TROUBLES = {
    "lost": ("""the {n} {was} gone|{hero} could not find the {n} anywhere|
        {hero} put {his} hand into the bag, but the {n} {was} not there|
        {hero} looked for the {n} and found only an empty place""",
        """There was a hole in the bag|{he} had put {it} down for a moment|
        {he} had talked too much on the way|it had been dark and {he} had not looked""",
        """{friend} walked back along the path and found {it} in the grass|
        they searched every corner until {friend} saw {it} under a bench|
        {friend} asked everybody, and a child had picked {it} up|
        {friend} lit a lamp, and at last they saw the {n} behind a door""",
        """From then on {hero} tied a string to the {n}|
        {hero} never put the {n} down again without looking|
        {hero} sewed up the bag that very evening"""),
    "broken": ("""the {n} fell and broke|the {n} cracked in the middle|
        there was a loud snap, and the {n} {was} broken|
        a piece of the {n} came off in {his} hand""",
        """{he} had used too much force|{he} had not looked where {he} was going|
        a screw had been loose for weeks|the {n} {was} older than anybody knew""",
        """{friend} brought glue and put the pieces together|
        {friend} cut a new piece of wood and made {it} whole|
        they tied {it} with wire, and {friend} held the ends|
        {friend} knew how to repair such things and worked all night""",
        """The {n} looked different now, but {they} lasted for years|
        {hero} learned to repair things by {himself}|
        One could still see the crack, and {hero} liked it"""),
    "stuck": ("""the {n} got stuck between two stones|the {n} {was} caught high up in a tree|
        the {n} would not move any more|the {n} slid into a deep hole""",
        """{he} had gone too near|the wind had turned without warning|
        the ground was soft after the rain|{he} had pulled when {he} should have pushed""",
        """{friend} fetched a long pole and freed {it}|they pulled together until {it} came loose|
        {friend} climbed up slowly and brought {it} down|
        {friend} dug around {it} with both hands""",
        """There were scratches on the {n}, but nobody minded|
        {hero} marked the place with a red stick|After that {hero} kept away from such places"""),
    "stolen": ("""a thief ran off with the {n}|a magpie carried the {n} away|
        somebody took the {n} while {hero} slept|a stranger took the {n} and disappeared""",
        """{he} had left the door open|nobody had kept watch|{he} had trusted the wrong person|
        {he} had boasted about {it} in the street""",
        """{friend} followed the footprints and brought {it} back|
        {friend} talked to the thief until the thief was ashamed|
        they set a trap with bread, and it worked|
        {friend} waited behind a wall and caught the thief""",
        """The thief said sorry and became a friend|{hero} bought a lock for the door|
        {hero} slept with the {n} under {his} pillow"""),
    "wet": ("""the {n} fell into the water|rain soaked the {n}|a wave splashed over the {n}|
        {hero} spilled a whole bucket over the {n}""",
        """{he} had not seen the clouds|the roof had a leak|{he} had stood too close to the edge|
        the lid had not been closed""",
        """{friend} dried {it} carefully by the fire|{friend} hung {it} on a line in the sun|
        they wiped {it} with a cloth until {they} {was} dry|
        {friend} blew warm air on {it} for an hour""",
        """The {n} smelled of smoke for a week|{hero} always took an umbrella after that|
        {hero} mended the roof the next day"""),
    "dirty": ("""the {n} fell into the mud|somebody spilled ink on the {n}|
        the {n} {was} covered with soot|thick dust lay on the {n}""",
        """{he} had left {it} outside|nobody had cleaned {it} for a year|
        {he} had worked without care|a dog had shaken itself beside {it}""",
        """{friend} washed {it} with warm water and soap|they brushed {it} until {they} shone|
        {friend} knew a trick with salt and lemon|
        {friend} scrubbed {it} while {hero} fetched water""",
        """The {n} looked like new|One small spot stayed, and {hero} called it a star|
        From then on {hero} cleaned the {n} every Saturday"""),
    "torn": ("""the {n} tore on a nail|a branch ripped the {n}|
        a dog pulled at the {n} until {they} tore|the {n} tore from one side to the other""",
        """{he} had been in a hurry|the nail had stuck out for years|
        {he} had not listened to the warning|the dog only wanted to play""",
        """{friend} took a needle and thread and mended {it}|
        {friend} pasted strong paper over the hole|they sewed a patch on {it}, shaped like a leaf|
        {friend} held the edges while {hero} stitched""",
        """The patch was the best part of the {n}|{hero} hammered the nail into the wall|
        {hero} walked more slowly after that"""),
    "borrowed": ("""a neighbour borrowed the {n} and did not bring {it} back|
        {hero} lent the {n} to a stranger|the {n} {was} with a cousin in another town|
        somebody had asked for the {n} and kept {it}""",
        """{he} could not say no|the neighbour had simply forgotten|they had not agreed on a day|
        the cousin thought that {they} {was} a gift""",
        """{friend} wrote a polite letter, and the {n} came back|
        {friend} went there and asked for {it} in a friendly way|
        they visited the neighbour with a cake|
        {friend} offered to lend something else instead""",
        """The neighbour gave them a basket of eggs as thanks|{hero} wrote {his} name on the {n}|
        They agreed on a day for the next time"""),
    "burnt": ("""black smoke rose from the {n}|the {n} {was} burnt on one side|
        the {n} stayed on the fire too long|there was a bitter smell, and the {n} {was} black""",
        """{he} had fallen asleep beside the stove|{he} had been reading a story|
        the fire was too hot|{he} had talked at the door""",
        """{friend} cut off the black part|{friend} opened the window and started again with {him}|
        they covered {it} with cream|{friend} showed {him} how to make a small fire""",
        """The second try tasted even better|{hero} set a clock beside the stove|
        The birds ate what was black"""),
    "spoiled": ("""the {n} tasted of salt|ants sat on the {n}|the {n} {was} covered with mould|
        the {n} had gone bad""",
        """{he} had mixed up the jars|{he} had kept {it} in a warm place|
        the lid had been left open|{he} had waited too long""",
        """{friend} had a little of {it} left and shared|{friend} wrote labels for all the jars|
        they made some more together|{friend} knew a cool place in the cellar""",
        """There was enough for everyone in the end|{hero} checked every jar from then on|
        Even the ants got a crumb"""),
    "ill": ("""the {n} would not get better|the {n} {was} weak and pale|the {n} hung down sadly|
        the {n} looked ill in the morning""",
        """the water had been bad|{he} had given too little water|the nights had been too cold|
        {he} had forgotten to look""",
        """{friend} mixed a medicine of herbs|{friend} sat beside {it} for three nights|
        they carried {it} into the warm sun|{friend} asked the old doctor and did as he said""",
        """After a week the {n} {was} stronger than before|{hero} wrote down what had helped|
        Spring came, and the {n} {was} well again"""),
    "frozen": ("""frost came in the night and covered the {n}|there was ice on the {n}|
        snow fell on the {n}|a cold wind shook the {n} all night""",
        """winter had come early|{he} had not covered {it}|the window had been open|
        {he} had not believed the old people""",
        """{friend} wrapped {it} in straw|{friend} put a glass roof over {it}|
        they carried warm water from the house|{friend} made a small fire near by""",
        """In spring there was a new green leaf|{hero} looked at the sky every evening after that|
        The {n} stood there for many years"""),
    "frightened": ("""thunder frightened the {n}|the {n} hid under a cart and would not come out|
        the {n} ran away from a loud noise|the {n} {was} trembling all over""",
        """nobody had closed the gate|the storm had come too fast|a boy had thrown a stone|
        {he} had shouted too loudly""",
        """{friend} spoke softly until {they} came out|{friend} held out some bread and waited|
        they sat down and sang together|{friend} covered {it} with a coat""",
        """The {n} never left {his} side again|Now they always sing when it thunders|
        {hero} learned to speak softly"""),
}

RULES = {       # what all stories share
    "open": """Once upon a time there was a {trait} {role} named {hero}|
        {hero} was a {trait} {role}|There once lived a {trait} {role} whose name was {hero}|
        Long ago a {trait} {role} named {hero} lived {place}|
        Everybody knew {hero}, the {trait} {role}|
        Not far from here lived {hero}, a {trait} {role}""",
    "had": """{hero} had {a_thing}|{his} dearest possession was {a_thing}|
        One <season> {hero} was given {a_thing}|{hero} found {a_thing} one morning|
        {his} grandmother had left {him} {a_thing}|
        For a whole year {hero} had saved money, and then {he} bought {a_thing}""",
    "liked": """{he} liked to <use:{key}>|every <daytime> {he} would <use:{key}>|
        there was nothing better than to <use:{key}>|
        {he} wanted to <use:{key}> and then to <use:{key}>""",
    "went": """One <daytime> {hero} was {place}|
        On a <weather> <daytime> {hero} took the {noun} along and stopped {place}|
        The next day was <weather>, and {hero} was {place} again|
        It was a <weather> <daytime>, and {hero} sat {place}|
        Early one <daytime> there was nobody {place} but {hero}""",
    "then": "Suddenly|Then|But before long|All at once|A little later|Just then",
    "felt": """{hero} was so <bad> that {he} <badly>|{hero} <badly>|
        "Oh no!" cried {hero}, and {he} <badly>|{hero} felt <bad>|
        "What shall I do without the {noun}?" asked {hero}""",
    "bad": "sad|angry|worried|unhappy|ashamed|frightened|upset|helpless|tired|desperate",
    "badly": """sat down and cried|did not say a word|walked up and down|kicked a stone|
        hid {his} face|sighed deeply|could not eat anything|stared at the ground""",
    "why": """It had happened because <cause:{trouble}:{key}>|
        The reason was simple: <cause:{trouble}:{key}>""",
    "came": """{friend} the {friend_role} came by|
        Along came {friend}, a {friend_role} from the next village|
        {friend}, {his} oldest friend, heard about it|
        A {friend_role} named {friend} stopped and listened""",
    "asked": """"Why are you so <bad>, {hero}?" asked {friend}|"Can I help you?" said {friend}|
        "Tell me what happened," said {friend}|"Is it about the {noun}?" asked {friend}""",
    "answered": """"It is about the {noun}," said {hero}|
        "I had {a_thing}, and now look," said {hero}|{hero} told {friend_him} everything|
        "You cannot help me," said {hero}, but {friend} smiled""",
    "so": """So|Without another word|First they drank some tea, and then|After a while|
        Together they thought, and|That same <daytime>""",
    "glad": """{hero} was <good> and thanked {friend}|"Thank you, {friend}!" said {hero}|
        {hero} laughed and was <good> again|Now {hero} was <good>, and {friend} was <good> too|
        "I will never forget this," said {hero}, and {he} was <good>""",
    "good": "happy|glad|proud|grateful|relieved|content|merry|calm|cheerful|delighted",
    "gift": """To thank {friend_him}, {hero} gave {friend} {a_gift}|
        {friend} wanted nothing, but {hero} gave {friend_him} {a_gift}|
        The next day {friend} found {a_gift} at the door; it came from {hero}""",
    "joy": """from that day {friend} liked to <use:{gift}>|now {friend} could <use:{gift}>|
        "Now I can <use:{gift}>!" said {friend}""",
    "end": """And so {hero} learned that {moral}|{friend} said that {moral}, and {hero} agreed|
        Since then people {place} say that {moral}|They were friends from that day on|
        {hero} and {friend} walked home together, and the {noun} came too""",
    "season": "spring|summer|autumn|winter",
    "daytime": "morning|evening|afternoon|day|night|Sunday|Monday",
    "weather": "sunny|rainy|windy|cold|warm|foggy|stormy|snowy|quiet|bright|grey|hot",
    "ask": """Tell me a story about a {role} and {a_thing}.|
        Write a story about {hero} and {a_thing}.|I would like a story about {hero}.|
        Do you know a story about a {trait} {role}?""",
}
