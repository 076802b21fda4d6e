/* Yardstick "raw loopback": one TCP stream, sender from a warm mapped file, receiver into a mapped file.
 *
 * usage: loopback DIRECTORY BYTES warm|fresh   (forks the receiver; prints one JSON line)
 *
 * warm: the receiver goes round in 64 MiB of pages that are in memory. fresh: it fills a new file of BYTES, as an
 * empty replica does; the kernel has to find and clear every page, which costs more than the copying.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const size_t WARM_BYTES = 64u << 20, CALL_BYTES = 256u << 10;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static char *map_file(const char *directory, const char *name, size_t bytes, int warm) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || posix_fallocate(fd, 0, (off_t)bytes)) fail(path);
    char *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) fail("mmap");
    if (warm) memset(map, 1, bytes);
    return map;
}

static void receive_all(int listener, const char *directory, size_t bytes, int warm, int ready) {
    char *map = map_file(directory, "received", bytes, warm);
    if (write(ready, "r", 1) != 1) fail("write");
    int fd = accept(listener, NULL, NULL);
    size_t at = 0;
    for (;;) {
        size_t room = bytes - at < CALL_BYTES ? bytes - at : CALL_BYTES;
        ssize_t n = recv(fd, map + at, room, 0);
        if (n <= 0) break;
        at = (at + (size_t)n) % bytes;
    }
    send(fd, "e", 1, MSG_NOSIGNAL); /* everything is in memory: the sender stops its clock */
    exit(0);
}

int main(int argc, char **argv) {
    if (argc != 4) { fprintf(stderr, "see the head of loopback.c\n"); return 2; }
    size_t total = strtoull(argv[2], NULL, 10), at = 0;
    int warm = argv[3][0] == 'w';
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    int ready[2], listener = socket(AF_INET, SOCK_STREAM, 0);
    char byte;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (pipe(ready) || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1)) fail("listen");
    getsockname(listener, (struct sockaddr *)&address, &size);
    if (fork() == 0) receive_all(listener, argv[1], warm ? WARM_BYTES : total + CALL_BYTES, warm, ready[1]);
    char *bytes = map_file(argv[1], "sent", WARM_BYTES, 1);
    if (read(ready[0], &byte, 1) != 1) fail("read");
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    double begin = now_s(), cpu_begin = cpu_s();
    for (size_t sent = 0; sent < total;) {
        ssize_t n = send(fd, bytes + at, CALL_BYTES, MSG_NOSIGNAL);
        if (n < 0) fail("send");
        sent += (size_t)n;
        at = at + (size_t)n + CALL_BYTES > WARM_BYTES ? 0 : at + (size_t)n;
    }
    shutdown(fd, SHUT_WR);
    if (recv(fd, &byte, 1, 0) != 1) fail("recv");
    double wall_s = now_s() - begin, sender_s = cpu_s() - cpu_begin;
    wait(NULL);
    printf("{\"bytes\":%zu,\"wall_s\":%.6f,\"mb_per_s\":%.1f,\"sender_cpu_s\":%.6f}\n", total, wall_s,
           (double)total / wall_s / 1e6, sender_s);
    return 0;
}
