/* Yardstick "C echo": the least that a server of these frames can do. One thread, epoll, a fixed reply per frame.
 *
 * usage: echo   (prints its port on the first line)
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { REPLY_BYTES = 200, BUFFER_BYTES = 1 << 19, FILES_MAX = 70000, EVENTS_MAX = 256 };
enum { REQUEST_BYTES_MIN = 64, REPLIES_BYTES_MAX = BUFFER_BYTES / REQUEST_BYTES_MIN * REPLY_BYTES };

static struct { uint8_t *bytes; size_t end; } inputs[FILES_MAX];
static uint8_t reply[REPLY_BYTES], replies[REPLIES_BYTES_MAX];

static void make_reply(void) {
    static const char header[] = "{\"code\":0,\"flag\":1,\"language\":\"OTHER\",\"opaque\":100000000}";
    uint32_t length = htonl(REPLY_BYTES - 4), header_length = htonl(REPLY_BYTES - 8);
    memset(reply, ' ', sizeof reply);
    memcpy(reply, &length, 4);
    memcpy(reply + 4, &header_length, 4);
    memcpy(reply + 8, header, sizeof header - 1);
}

static int listen_somewhere(void) {
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 1024)) { perror("listen"); exit(1); }
    getsockname(fd, (struct sockaddr *)&at, &size);
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    return fd;
}

static void accept_one(int poller, int listener) {
    int one = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd < 0 || fd >= FILES_MAX) return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    inputs[fd].bytes = malloc(BUFFER_BYTES);
    inputs[fd].end = 0;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
}

static void serve(int fd) {
    uint8_t *in = inputs[fd].bytes;
    ssize_t n = recv(fd, in + inputs[fd].end, BUFFER_BYTES - inputs[fd].end, 0);
    if (n <= 0) { close(fd); free(in); return; }
    size_t end = inputs[fd].end + (size_t)n, at = 0, out = 0;
    while (end - at >= 4) {
        uint32_t length;
        memcpy(&length, in + at, 4);
        length = ntohl(length);
        if (end - at < 4 + length) break;
        memcpy(replies + out, reply, REPLY_BYTES);
        out += REPLY_BYTES;
        at += 4 + length;
    }
    memmove(in, in + at, end - at);
    inputs[fd].end = end - at;
    for (size_t sent = 0; sent < out;) {
        ssize_t k = send(fd, replies + sent, out - sent, MSG_NOSIGNAL);
        if (k > 0) sent += (size_t)k;
    }
}

int main(void) {
    struct epoll_event events[EVENTS_MAX], event = {.events = EPOLLIN};
    int listener = listen_somewhere(), poller = epoll_create1(0);
    make_reply();
    event.data.fd = listener;
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int n = epoll_wait(poller, events, EVENTS_MAX, -1);
        for (int i = 0; i < n; i++) {
            if (events[i].data.fd == listener) accept_one(poller, listener);
            else serve(events[i].data.fd);
        }
    }
}
