# Boots systemd as the first process of a machine of tests/cluster/booted.py: sh booted.sh DIRECTORY ENVIRONMENT PYTHON AT,
# in namespaces for processes, mounts and control groups. /usr is the host's, and read-only; /etc is DIRECTORY/etc; /opt/keelmq is
# ENVIRONMENT; the directory PYTHON of the host is at AT. Nothing of the host's system is started, and its kernel's settings are read-only.
set -eu
directory=$1 environment=$2 python=$3 at=$4
root=$directory/root
units="basic exit final halt local-fs local-fs-pre multi-user network network-online paths poweroff shutdown slices sockets swap sysinit timers umount"
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$root"
cd "$root"
mkdir -p dev etc home opt/keelmq proc root run sys tmp usr var/lib var/log .old ".$at"
chmod 1777 tmp
ln -s /run var/run
for each in bin sbin lib lib64; do
  [ ! -L "/$each" ] || cp -P "/$each" "$each"
done
mount --bind /usr usr
mount -o remount,bind,ro usr
mount -t tmpfs -o mode=755 tmpfs usr/lib/systemd/system
for each in $units; do
  cp "$directory/units/$each.target" usr/lib/systemd/system
done
cp "$directory"/units/systemd-journald* "$directory/units/systemd-poweroff.service" usr/lib/systemd/system
mount -t tmpfs -o mode=755 tmpfs usr/lib/systemd/system-generators
mkdir usr/lib/systemd/system/sysinit.target.wants
ln -s ../systemd-journald.service usr/lib/systemd/system/sysinit.target.wants
mount --bind "$directory/etc" etc
mount --bind "$environment" opt/keelmq
mount --bind "$directory/bin" opt/keelmq/bin
mount --bind "$directory/pyvenv.cfg" opt/keelmq/pyvenv.cfg
mount --bind "$directory/var-lib" var/lib
mount --bind "$directory/home" home
mount --bind "$python" ".$at"
mkdir -p etc/ld.so.conf.d
echo "$at/lib" > etc/ld.so.conf.d/keelmq-test.conf
chroot . /sbin/ldconfig
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
# New nodes: systemd changes the owner and the mode of its console, which must not be a file of the host.
while read -r name major minor; do
  mknod -m 666 "dev/$name" c "$major" "$minor"
done << end
console 1 3
null 1 3
zero 1 5
full 1 7
random 1 8
urandom 1 9
tty 5 0
end
mkdir dev/shm dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
pivot_root . .old
umount -l /.old
exec env -i container=keelmq PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=multi-user.target --show-status=0
