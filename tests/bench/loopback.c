/* Yardstick "raw loopback": one TCP stream, sender from a warm mapped file, receiver into a warm mapped file.
 *
 * usage: loopback DIRECTORY BYTES   (forks the receiver; prints one JSON line)
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

static const size_t FILE_BYTES = 64u << 20, CALL_BYTES = 256u << 10;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static char *warm_file(const char *directory, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)FILE_BYTES)) fail(path);
    char *bytes = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) fail("mmap");
    memset(bytes, 1, FILE_BYTES);
    return bytes;
}

static void receive_all(int listener, const char *directory, int ready) {
    char *bytes = warm_file(directory, "received");
    if (write(ready, "r", 1) != 1) fail("write");
    int fd = accept(listener, NULL, NULL);
    size_t at = 0;
    for (;;) {
        size_t room = FILE_BYTES - at < CALL_BYTES ? FILE_BYTES - at : CALL_BYTES;
        ssize_t n = recv(fd, bytes + at, room, 0);
        if (n <= 0) break;
        at = (at + (size_t)n) % FILE_BYTES;
    }
    send(fd, "e", 1, MSG_NOSIGNAL); /* everything is in memory: the sender stops its clock */
    exit(0);
}

int main(int argc, char **argv) {
    if (argc != 3) { fprintf(stderr, "see the head of loopback.c\n"); return 2; }
    size_t total = strtoull(argv[2], NULL, 10), at = 0;
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    int ready[2], listener = socket(AF_INET, SOCK_STREAM, 0);
    char byte;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (pipe(ready) || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1)) fail("listen");
    getsockname(listener, (struct sockaddr *)&address, &size);
    if (fork() == 0) receive_all(listener, argv[1], ready[1]);
    char *bytes = warm_file(argv[1], "sent");
    if (read(ready[0], &byte, 1) != 1) fail("read");
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    double begin = now_s();
    for (size_t sent = 0; sent < total;) {
        ssize_t n = send(fd, bytes + at, CALL_BYTES, MSG_NOSIGNAL);
        if (n < 0) fail("send");
        sent += (size_t)n;
        at = at + (size_t)n + CALL_BYTES > FILE_BYTES ? 0 : at + (size_t)n;
    }
    shutdown(fd, SHUT_WR);
    if (recv(fd, &byte, 1, 0) != 1) fail("recv");
    double wall_s = now_s() - begin;
    wait(NULL);
    printf("{\"bytes\":%zu,\"wall_s\":%.6f,\"mb_per_s\":%.1f}\n", total, wall_s, (double)total / wall_s / 1e6);
    return 0;
}
