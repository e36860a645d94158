. /tmp/s29/edge/lib.sh
(A $PY /tmp/s29/edge/streams.py http://127.0.0.1:18300 8 400 /tmp/s29/edge/ref8x400.json) > $L/c4.txt &
C=$!
sleep 12; down; date +"down %T"; sleep ${1:-60}; 
for f in front-1 engine-1; do p=$(cat $L/$f.pid); grep VmRSS /proc/$p/status;done
up; date +"up %T"; wait $C; cat $L/c4.txt; for f in front-1 engine-1; do tail -n 8 $L/$f.log; done
