/* Load generator: one pre-encoded frame, sent over and over, only its opaque patched.
 *
 * usage: load PORT CONNECTIONS IN_FLIGHT WARMUP_MS MEASURE_MS SERVER_PID FRAME_FILE AWAKE OPAQUE_AT [QUEUE_OFFSET_AT]
 *
 * Each connection keeps IN_FLIGHT requests under way. OPAQUE_AT is the place of nine ASCII digits in the frame;
 * QUEUE_OFFSET_AT that of four, which go up by 32 from one pull to the next, from 1000 to 9000 and again.
 * AWAKE 1: it looks for replies without sleeping. To wake a process of this machine is work for who writes to it.
 * Every reply must hold "code":0. Prints one JSON line; server_cpu_s is the CPU time of SERVER_PID meanwhile.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { REPLY_BYTES_MAX = 1 << 20, EVENTS_MAX = 256, OPAQUE_DIGITS = 9, BUCKETS = 1024 };
enum { QUEUE_OFFSET_DIGITS = 4, QUEUE_OFFSET_FIRST = 1000, QUEUE_OFFSET_LAST = 9000, QUEUE_OFFSET_STEP = 32 };
static const uint32_t OPAQUE_FIRST = 100000000, OPAQUE_LAST = 999999999;

typedef struct {
    int fd, in_flight, wants_write;
    uint8_t *out, *in;
    size_t out_at, out_end, in_end;
    uint64_t *sent_ns; /* ring of IN_FLIGHT + 1: replies come in order */
    int first, next;
} Connection;

static struct {
    uint64_t replies, refused, bytes, histogram[BUCKETS];
} totals;
static uint8_t frame[REPLY_BYTES_MAX];
static size_t frame_bytes;
static int in_flight_max, opaque_at, queue_offset_at, poller, sleep_ms_max;
static uint32_t opaque = 100000000, queue_offset = QUEUE_OFFSET_FIRST;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t clock_ns(clockid_t id) {
    struct timespec t;
    if (clock_gettime(id, &t)) fail("clock_gettime");
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

static uint64_t cpu_ns(pid_t pid) {
    clockid_t id;
    if (clock_getcpuclockid(pid, &id)) fail("clock_getcpuclockid");
    return clock_ns(id);
}

/* Exact below 32 ns, then 16 buckets per power of two. */
static int bucket_of(uint64_t ns) {
    if (ns < 32) return (int)ns;
    int shift = 63 - __builtin_clzll(ns) - 4;
    return shift * 16 + (int)(ns >> shift);
}

static uint64_t bucket_start_ns(int bucket) {
    return bucket < 32 ? (uint64_t)bucket : (uint64_t)(16 + bucket % 16) << (bucket / 16 - 1);
}

static double quantile_us(double q) {
    uint64_t wanted = (uint64_t)(q * (double)totals.replies), seen = 0;
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        seen += totals.histogram[bucket];
        if (seen > wanted) return (double)bucket_start_ns(bucket) / 1e3;
    }
    return -1;
}

static void watch(Connection *c, int operation) {
    struct epoll_event event = {.events = EPOLLIN | (c->wants_write ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(poller, operation, c->fd, &event)) fail("epoll_ctl");
}

static void open_connection(Connection *c, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->fd, (struct sockaddr *)&to, sizeof to)) fail("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->out = malloc(frame_bytes * (size_t)in_flight_max);
    c->in = malloc(REPLY_BYTES_MAX);
    c->sent_ns = calloc((size_t)in_flight_max + 1, sizeof *c->sent_ns);
    watch(c, EPOLL_CTL_ADD);
}

static void put_digits(uint8_t *at, int digits, uint32_t value) {
    for (int digit = digits - 1; digit >= 0; digit--, value /= 10) at[digit] = (uint8_t)('0' + value % 10);
}

static void put_request(Connection *c) {
    uint8_t *at = c->out + c->out_end;
    opaque = opaque == OPAQUE_LAST ? OPAQUE_FIRST : opaque + 1;
    memcpy(at, frame, frame_bytes);
    put_digits(at + opaque_at, OPAQUE_DIGITS, opaque);
    if (queue_offset_at) {
        put_digits(at + queue_offset_at, QUEUE_OFFSET_DIGITS, queue_offset);
        queue_offset += QUEUE_OFFSET_STEP;
        if (queue_offset > QUEUE_OFFSET_LAST) queue_offset = QUEUE_OFFSET_FIRST;
    }
    c->out_end += frame_bytes;
    c->in_flight++;
    c->sent_ns[c->next] = now_ns();
    c->next = (c->next + 1) % (in_flight_max + 1);
}

static void fill_and_send(Connection *c) {
    if (c->out_at == c->out_end) c->out_at = c->out_end = 0;
    while (c->in_flight < in_flight_max && c->out_end + frame_bytes <= frame_bytes * (size_t)in_flight_max)
        put_request(c);
    while (c->out_at < c->out_end) {
        ssize_t n = send(c->fd, c->out + c->out_at, c->out_end - c->out_at, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) fail("send");
        c->out_at += (size_t)n;
    }
    if (c->wants_write != (c->out_at < c->out_end)) {
        c->wants_write = c->out_at < c->out_end;
        watch(c, EPOLL_CTL_MOD);
    }
}

static void receive(Connection *c) {
    ssize_t n = recv(c->fd, c->in + c->in_end, REPLY_BYTES_MAX - c->in_end, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) fail("recv");
    if (n == 0) { fprintf(stderr, "the server closed a connection\n"); exit(1); }
    uint64_t now = now_ns();
    size_t at = 0;
    c->in_end += (size_t)n;
    while (c->in_end - at >= 4) {
        uint32_t length;
        memcpy(&length, c->in + at, 4);
        length = ntohl(length);
        if (length + 4 > REPLY_BYTES_MAX) { fprintf(stderr, "a reply of %u bytes\n", length); exit(1); }
        if (c->in_end - at < 4 + length) break;
        if (!memmem(c->in + at, 4 + length, "\"code\":0", 8) && totals.refused++ == 0)
            fprintf(stderr, "refused: %.*s\n", (int)length, (char *)c->in + at + 8);
        totals.replies++;
        totals.bytes += 4 + length;
        totals.histogram[bucket_of(now - c->sent_ns[c->first])]++;
        c->first = (c->first + 1) % (in_flight_max + 1);
        c->in_flight--;
        at += 4 + length;
    }
    memmove(c->in, c->in + at, c->in_end - at);
    c->in_end -= at;
}

static void run_until(uint64_t end_ns, Connection *connections, int count) {
    struct epoll_event events[EVENTS_MAX];
    while (now_ns() < end_ns) {
        for (int i = 0; i < count; i++)
            if (!connections[i].wants_write) fill_and_send(&connections[i]);
        int n = epoll_wait(poller, events, EVENTS_MAX, sleep_ms_max);
        for (int i = 0; i < n; i++) {
            Connection *c = events[i].data.ptr;
            if (events[i].events & ~(uint32_t)EPOLLOUT) receive(c);
            if (events[i].events & EPOLLOUT) fill_and_send(c);
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 10 && argc != 11) { fprintf(stderr, "see the head of load.c\n"); return 2; }
    int port = atoi(argv[1]), count = atoi(argv[2]), warmup_ms = atoi(argv[4]), measure_ms = atoi(argv[5]);
    pid_t server = atoi(argv[6]);
    FILE *file = fopen(argv[7], "rb");
    if (!file) fail(argv[7]);
    frame_bytes = fread(frame, 1, sizeof frame, file);
    in_flight_max = atoi(argv[3]);
    sleep_ms_max = atoi(argv[8]) ? 0 : 100;
    opaque_at = atoi(argv[9]);
    queue_offset_at = argc == 11 ? atoi(argv[10]) : 0;
    poller = epoll_create1(0);
    Connection *connections = calloc((size_t)count, sizeof *connections);
    for (int i = 0; i < count; i++) open_connection(&connections[i], port);
    run_until(now_ns() + (uint64_t)warmup_ms * 1000000u, connections, count);
    memset(&totals, 0, sizeof totals);
    uint64_t begin = now_ns(), cpu = cpu_ns(server);
    run_until(begin + (uint64_t)measure_ms * 1000000u, connections, count);
    double wall_s = (double)(now_ns() - begin) / 1e9, cpu_s = (double)(cpu_ns(server) - cpu) / 1e9;
    printf("{\"replies\":%lu,\"refused\":%lu,\"bytes\":%lu,\"wall_s\":%.6f,\"server_cpu_s\":%.6f,\"p50_us\":%.1f,"
           "\"p99_us\":%.1f}\n",
           (unsigned long)totals.replies, (unsigned long)totals.refused, (unsigned long)totals.bytes, wall_s, cpu_s, quantile_us(.5),
           quantile_us(.99));
    return 0;
}
