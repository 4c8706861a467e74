import sys,pathlib
from tests.faults.truth import *
from tests.faults.runner import run_all
kinds=[Kind(k) for k in sys.argv[2].split(",")] if len(sys.argv)>2 else tuple(Kind)
run_all(faults(int(sys.argv[1]),(2,),1,tuple(kinds)),pathlib.Path("/tmp/f1"))
