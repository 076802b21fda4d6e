# A machine of tests/cluster/test_machines.py: sh machine.sh DIRECTORY ENVIRONMENT PYTHON COMMAND..., in a mount namespace.
# /etc, /var/lib and /opt are those below DIRECTORY, /opt/keelmq is ENVIRONMENT, the working directory DIRECTORY/home.
set -eu
directory=$1 environment=$2 python=$3
shift 3
mount --make-rprivate /
case "$python" in
  /root/*) # The user keelmq may not look into root's home: what it runs is there alone.
    mount --bind "$python" /mnt
    mount -t tmpfs -o mode=755 tmpfs /root
    mkdir -p "$python"
    mount --move /mnt "$python" ;;
esac
mount --bind "$directory/opt" /opt
mount --bind "$environment" /opt/keelmq
mount --bind "$directory/var-lib" /var/lib
mount --bind "$directory/etc" /etc
cd "$directory/home"
exec "$@"
