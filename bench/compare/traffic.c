// SPDX-License-Identifier: GPL-2.0-only
/*
 * Traffic of many connections from one process, cheap enough to leave the CPU to the transports that
 * are compared.
 *
 *   traffic sink PORT CONNECTIONS RECORD [mptcp] [control NAME] [at ADDRESS]
 *   traffic source PORT MILLISECONDS [mptcp] [control NAME] [rate BYTES_PER_S]
 *                  ID/ADDRESS/CONNECTIONS[/SPORT] ...
 *   traffic answer PORT BYTES CONNECTIONS [mptcp] [control NAME] [at ADDRESS]
 *   traffic ask PORT MILLISECONDS BYTES CONNECTIONS RECORD [mptcp] [control NAME] at ADDRESS
 *
 * Each prints one JSON object a line: first when ready, then the result. A source is ready when all
 * its connections exist, and begins on SIGUSR1. Each connection begins with its 64-bit number,
 * (ID << 16) + a count from 0. `rate` applies to each connection. SPORT is the first connection's
 * source port, and the next one's is SPORT + 1. A sink ends when all connections have closed, or on
 * SIGTERM with the result so far. `ask` has one request on its way on each connection, and an answer
 * is as long as its request.
 *
 * A RECORD is native u64: triples of CLOCK_MONOTONIC, connection number and bytes for a sink, and
 * for `ask` pairs of CLOCK_MONOTONIC and the nanoseconds from request to answer that ended then.
 * Congestion control is cubic unless `control` names another.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

#define CONNECTIONS_MAX 1024
#define CHUNK (1 << 18)
#define PACED_CHUNK (1 << 14)
#define ID_SHIFT 16
#define NS_PER_S 1000000000ull
#define NS_PER_MS 1000000ull

struct connection {
	int fd;
	int error;	/* errno that ended it, 0: none */
	uint64_t number;
	uint64_t moved; /* bytes sent, or received; the number itself is not counted */
	uint32_t named; /* bytes of the number that have arrived */
};

struct place {
	struct sockaddr_storage address;
	socklen_t length;
};

static struct {
	bool mptcp;
	uint64_t rate;
	const char *control;
	const char *at;
} options = { .control = "cubic" };

static struct connection connections[CONNECTIONS_MAX];
static char block[CHUNK];
static volatile sig_atomic_t told_to_end;

static uint64_t now_ns(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * NS_PER_S + at.tv_nsec;
}

static void end(int number)
{
	(void)number;
	told_to_end = 1;
}

static int new_socket(int family)
{
	static const int one = 1;
	int fd = socket(family, SOCK_STREAM, options.mptcp ? IPPROTO_MPTCP : IPPROTO_TCP);

	if (fd < 0)
		err(1, "socket");
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, options.control, strlen(options.control)))
		err(1, "%s", options.control);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)); /* accepted ones inherit it */
	return fd;
}

/* Return an IPv4 or IPv6 address with a port, or the wildcard of its family. */
static struct place place(const char *address, uint16_t port, bool any)
{
	struct addrinfo how = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM };
	struct addrinfo *found;
	struct place where;
	char service[8];

	snprintf(service, sizeof(service), "%u", port);
	if (getaddrinfo(address ? address : "0.0.0.0", service, &how, &found))
		errx(1, "%s is no address", address);
	if (any) {
		how.ai_family = found->ai_family;
		how.ai_flags |= AI_PASSIVE;
		freeaddrinfo(found);
		if (getaddrinfo(NULL, service, &how, &found))
			errx(1, "no wildcard for %s", address);
	}
	where.length = found->ai_addrlen;
	memcpy(&where.address, found->ai_addr, where.length);
	freeaddrinfo(found);
	return where;
}

static int listening(uint16_t port)
{
	/* further subflows of MPTCP go to other addresses, which only a wildcard listener accepts */
	struct place here = place(options.at, port, options.mptcp);
	int fd = new_socket(here.address.ss_family);

	if (bind(fd, (struct sockaddr *)&here.address, here.length) || listen(fd, CONNECTIONS_MAX))
		err(1, "listen on port %u", port);
	return fd;
}

static int connected(const char *address, uint16_t port, uint16_t own_port)
{
	struct place there = place(address, port, false), here = place(address, own_port, true);
	int fd = new_socket(there.address.ss_family);

	if (own_port && bind(fd, (struct sockaddr *)&here.address, here.length))
		err(1, "bind to port %u", own_port);
	if (connect(fd, (struct sockaddr *)&there.address, there.length))
		err(1, "connect to %s", address);
	return fd;
}

static void non_blocking(int fd)
{
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static void watch(int poller, int fd, uint32_t events, uint64_t what)
{
	struct epoll_event event = { .events = events, .data.u64 = what };

	if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event))
		err(1, "epoll");
}

static void say_connections(const char *word, uint32_t count)
{
	printf("{\"%s\": [", word);
	for (uint32_t i = 0; i < count; i++)
		printf("%s[%llu, %llu, %d]", i ? ", " : "", (unsigned long long)connections[i].number,
		       (unsigned long long)connections[i].moved, connections[i].error);
}

/* Receive what one connection has; return false if it has ended. */
static bool take(struct connection *from, FILE *record)
{
	ssize_t size = recv(from->fd, block, sizeof(block), 0);
	uint64_t entry[3] = { now_ns() };
	char *number = (char *)&from->number;
	ssize_t skip = 0;

	if (size < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (size <= 0) {
		from->error = size ? errno : 0;
		close(from->fd);
		return false;
	}
	while (from->named < sizeof(from->number) && skip < size)
		number[from->named++] = block[skip++];
	if (size == skip)
		return true;
	from->moved += size - skip;
	entry[1] = from->number;
	entry[2] = size - skip;
	if (fwrite(entry, sizeof(entry), 1, record) != 1)
		err(1, "record");
	return true;
}

static void sink(uint16_t port, uint32_t wanted, const char *file)
{
	FILE *record = fopen(file, "wb");
	int poller = epoll_create1(0), listener = listening(port);
	uint32_t accepted = 0, ended = 0;
	struct epoll_event events[64];

	if (!record)
		err(1, "%s", file);
	non_blocking(listener);
	watch(poller, listener, EPOLLIN, CONNECTIONS_MAX);
	puts("{\"ready\": true}");
	fflush(stdout);
	while (ended < wanted && !told_to_end) {
		int count = epoll_wait(poller, events, 64, 100);

		for (int i = 0; i < count; i++) {
			uint64_t which = events[i].data.u64;

			if (which < CONNECTIONS_MAX) {
				ended += !take(&connections[which], record);
				continue;
			}
			int fd = accept(listener, NULL, NULL);
			if (fd < 0)
				continue;
			if (accepted == CONNECTIONS_MAX)
				errx(1, "more than %d connections", CONNECTIONS_MAX);
			non_blocking(fd);
			connections[accepted].fd = fd;
			watch(poller, fd, EPOLLIN, accepted++);
		}
	}
	if (fclose(record))
		err(1, "%s", file);
	say_connections("received", accepted);
	puts("]}");
}

/* Send up to `most` bytes; return the number sent, 0 if it would block or has failed. */
static uint64_t give(struct connection *to, uint64_t most)
{
	ssize_t size = send(to->fd, block, most < CHUNK ? most : CHUNK, MSG_NOSIGNAL);

	if (size >= 0) {
		to->moved += size;
		return size;
	}
	if (errno != EAGAIN && errno != EINTR)
		to->error = errno;
	return 0;
}

static void flood(uint32_t count, uint64_t until_ns)
{
	int poller = epoll_create1(0);
	struct epoll_event events[64];

	for (uint32_t i = 0; i < count; i++)
		watch(poller, connections[i].fd, EPOLLOUT, i);
	for (uint64_t now = now_ns(); now < until_ns; now = now_ns()) {
		int left_ms = (until_ns - now) / NS_PER_MS + 1;
		int ready = epoll_wait(poller, events, 64, left_ms);

		for (int i = 0; i < ready; i++) {
			struct connection *to = &connections[events[i].data.u64];

			give(to, CHUNK);
			if (to->error)
				epoll_ctl(poller, EPOLL_CTL_DEL, to->fd, NULL);
		}
	}
}

static void pace(uint32_t count, uint64_t began_ns, uint64_t until_ns)
{
	for (uint64_t now = began_ns; now < until_ns; now = now_ns()) {
		uint64_t due = (now - began_ns) / 1000 * options.rate / 1000000;

		for (uint32_t i = 0; i < count; i++) {
			struct connection *to = &connections[i];

			while (!to->error && to->moved + PACED_CHUNK <= due && give(to, PACED_CHUNK))
				;
		}
		poll(NULL, 0, 1);
	}
}

/* Open the connections of one ID/ADDRESS/CONNECTIONS[/SPORT]; return how many there are now. */
static uint32_t open_connections(char *spec, uint16_t port, uint32_t count)
{
	char *id = strsep(&spec, "/"), *address = strsep(&spec, "/"), *wanted = strsep(&spec, "/");
	uint16_t own_port = spec ? atoi(spec) : 0;

	if (!wanted)
		errx(1, "%s: ID/ADDRESS/CONNECTIONS is wanted", id);
	for (int i = 0; i < atoi(wanted); i++, count++) {
		struct connection *new = &connections[count];

		if (count == CONNECTIONS_MAX)
			errx(1, "more than %d connections", CONNECTIONS_MAX);
		new->fd = connected(address, port, own_port ? own_port + i : 0);
		new->number = (strtoull(id, NULL, 10) << ID_SHIFT) + i;
		if (send(new->fd, &new->number, sizeof(new->number), 0) != sizeof(new->number))
			err(1, "number to %s", address);
		non_blocking(new->fd);
	}
	return count;
}

static void source(uint16_t port, uint32_t milliseconds, char **specs)
{
	uint32_t count = 0;
	sigset_t begin;
	int number;

	sigemptyset(&begin);
	sigaddset(&begin, SIGUSR1);
	sigprocmask(SIG_BLOCK, &begin, NULL);
	for (; *specs; specs++)
		count = open_connections(*specs, port, count);
	printf("{\"ready\": true, \"connections\": %u}\n", count);
	fflush(stdout);
	sigwait(&begin, &number);

	uint64_t began_ns = now_ns(), until_ns = began_ns + milliseconds * NS_PER_MS;
	if (options.rate)
		pace(count, began_ns, until_ns);
	else
		flood(count, until_ns);
	say_connections("sent", count);
	printf("], \"began_ns\": %llu}\n", (unsigned long long)began_ns);
	fflush(stdout);
	for (uint32_t i = 0; i < count; i++)
		close(connections[i].fd);
}

/* One side of requests and answers on a connection: sends and receives `size` bytes in turns. */
struct side {
	int fd;
	bool sending;
	uint32_t done;	    /* bytes of this turn */
	uint64_t since_ns;  /* when the request began */
};

static struct side sides[CONNECTIONS_MAX];

/* What has the connections of `answer` and `ask` in common. */
static struct {
	uint32_t count;
	uint32_t size;
	FILE *record;	    /* where the side that asks notes what answers took, or NULL */
	uint64_t finished;
} exchange;

/* A turn is over, and the next one begins. The side that asks notes each answer. */
static void turn(struct side *side)
{
	uint64_t entry[2];

	side->done = 0;
	side->sending = !side->sending;
	if (side->sending != (exchange.record != NULL)) /* that was a request */
		return;
	exchange.finished++;
	if (!exchange.record)
		return;
	entry[0] = now_ns();
	entry[1] = entry[0] - side->since_ns;
	side->since_ns = entry[0];
	if (fwrite(entry, sizeof(entry), 1, exchange.record) != 1)
		err(1, "record");
}

/* Move what can be moved now; a lone connection blocks. Return false if it has ended. */
static bool move(struct side *side)
{
	int how = MSG_NOSIGNAL | (exchange.count > 1 ? MSG_DONTWAIT : 0);
	ssize_t size;

	for (;;) {
		uint32_t left = exchange.size - side->done;

		size = side->sending ? send(side->fd, block + side->done, left, how) :
				       recv(side->fd, block + side->done, left, how);
		if (size < 0 && (errno == EAGAIN || errno == EINTR))
			return true;
		if (size <= 0)
			return false;
		side->done += size;
		if (side->done < exchange.size)
			continue;
		turn(side);
		if (exchange.count == 1) /* the time may be over */
			return true;
	}
}

/* Exchange until a time, or until a connection ends; return whether none has. */
static bool exchange_until(uint64_t until_ns)
{
	int poller = exchange.count > 1 ? epoll_create1(0) : -1;
	struct epoll_event events[64];

	for (uint32_t i = 0; exchange.count > 1 && i < exchange.count; i++)
		watch(poller, sides[i].fd, EPOLLIN | EPOLLOUT | EPOLLET, i);
	for (uint64_t now = now_ns(); now < until_ns && !told_to_end; now = now_ns()) {
		if (exchange.count == 1) {
			if (!move(&sides[0]))
				return false;
			continue;
		}
		uint64_t left_ms = (until_ns - now) / NS_PER_MS + 1;
		int ready = epoll_wait(poller, events, 64, left_ms < 100 ? left_ms : 100);

		for (int i = 0; i < ready; i++)
			if (!move(&sides[events[i].data.u64]))
				return false;
	}
	return true;
}

static void check_exchange(void)
{
	if (!exchange.count || exchange.count > CONNECTIONS_MAX)
		errx(1, "connections are 1 to %d", CONNECTIONS_MAX);
	if (!exchange.size || exchange.size > CHUNK)
		errx(1, "requests have 1 to %d bytes", CHUNK);
}

static void answer(uint16_t port, uint32_t size, uint32_t count)
{
	int listener = listening(port);

	exchange.size = size;
	exchange.count = count;
	check_exchange();
	puts("{\"ready\": true}");
	fflush(stdout);
	for (uint32_t i = 0; i < count; i++)
		sides[i].fd = accept(listener, NULL, NULL);
	exchange_until(UINT64_MAX);
	printf("{\"answered\": %llu}\n", (unsigned long long)exchange.finished);
}

static void ask(uint16_t port, uint32_t milliseconds, uint32_t size, uint32_t count, const char *file)
{
	uint64_t began_ns;

	exchange.size = size;
	exchange.count = count;
	check_exchange();
	exchange.record = fopen(file, "wb");
	if (!exchange.record || !options.at)
		errx(1, exchange.record ? "ask: at ADDRESS is wanted" : "%s cannot be written", file);
	for (uint32_t i = 0; i < count; i++) {
		sides[i].fd = connected(options.at, port, 0);
		sides[i].sending = true;
	}
	puts("{\"ready\": true}");
	fflush(stdout);
	began_ns = now_ns();
	for (uint32_t i = 0; i < count; i++)
		sides[i].since_ns = began_ns;
	if (!exchange_until(began_ns + milliseconds * NS_PER_MS))
		err(1, "ask: a connection broke");
	if (fclose(exchange.record))
		err(1, "%s", file);
	printf("{\"asked\": %llu, \"began_ns\": %llu}\n", (unsigned long long)exchange.finished,
	       (unsigned long long)began_ns);
}

/* Parse the options and remove them from the arguments. */
static int without_options(int count, char **arguments)
{
	int left = 0;

	for (int i = 0; i < count; i++) {
		if (!strcmp(arguments[i], "mptcp"))
			options.mptcp = true;
		else if (!strcmp(arguments[i], "rate") && i + 1 < count)
			options.rate = strtoull(arguments[++i], NULL, 10);
		else if (!strcmp(arguments[i], "control") && i + 1 < count)
			options.control = arguments[++i];
		else if (!strcmp(arguments[i], "at") && i + 1 < count)
			options.at = arguments[++i];
		else
			arguments[left++] = arguments[i];
	}
	arguments[left] = NULL;
	return left;
}

int main(int count, char **arguments)
{
	struct sigaction ending = { .sa_handler = end };

	sigaction(SIGTERM, &ending, NULL);
	count = without_options(count, arguments);
	if (count >= 5 && !strcmp(arguments[1], "sink"))
		sink(atoi(arguments[2]), atoi(arguments[3]), arguments[4]);
	else if (count >= 5 && !strcmp(arguments[1], "source"))
		source(atoi(arguments[2]), atoi(arguments[3]), arguments + 4);
	else if (count >= 5 && !strcmp(arguments[1], "answer"))
		answer(atoi(arguments[2]), atoi(arguments[3]), atoi(arguments[4]));
	else if (count >= 7 && !strcmp(arguments[1], "ask"))
		ask(atoi(arguments[2]), atoi(arguments[3]), atoi(arguments[4]), atoi(arguments[5]),
		    arguments[6]);
	else
		errx(1, "wrong arguments: see the head of traffic.c");
	return 0;
}
