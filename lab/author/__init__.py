"""The tools of those who write lessons.

commands         `lab new`, `build`, `verify` and `bench`
scaffold         `lab new`: the files of a lesson
rename           `lab rename`: another name for an exercise
build            `lab build`: notebooks, solutions, tables of contents, the map
interface        what an exercise may call, written from the code
verify           `lab verify`: proves the graders by references, stubs, mutants and twins
twins            references in another style, made by `ast`
gaps             which kinds of hard inputs graders leave out
prove            `make test`, `make test-all`, `make soak`: runs units and sums up
units            what each of these proofs consists of
proven           proofs/: the lessons proven whole, and what took how long
machine          memory and load during a proof
gpu_proof        `make gpu`
hopper_report    `make compiled`: what the compilers make of the kernels for Hopper
simulator_speed  `make speed`: the simulator beside other simulators
versions         `make test-versions`: the oldest and the newest supported compilers
mutations        lines changed at random, and whether the proof notices
site             `make site`: the course as pages for a browser
house            the house in numbers: files, circles, names
simulators       other tools beside the simulator, on kernels right and broken
public_faults    faults of public kernels, found in small kernels of our own
"""
