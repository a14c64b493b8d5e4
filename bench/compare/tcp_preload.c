// SPDX-License-Identifier: GPL-2.0-only
/*
 * LD_PRELOAD for programs that use the system's default TCP. With TCP_PRELOAD=tcp in the environment
 * at the time of a call, TCP is cubic, which a namespace cannot have as its default. With
 * TCP_PRELOAD=mptcp it is MPTCP as well, as with mptcpize.
 *
 * Further subflows go to other addresses of a host than the first one, and only a listener on the
 * wildcard address accepts them. So a socket bound to one address is bound to all, and the program is
 * told the address it asked for.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

#define FILES_MAX 65536

static uint32_t asked_for[FILES_MAX]; /* by file descriptor: the address of its bind, 0: none */

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int wanted(const char *kind)
{
	const char *asked = getenv("TCP_PRELOAD");

	return asked && (!kind || !strcmp(asked, kind));
}

int socket(int domain, int type, int protocol)
{
	int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
	int tcp = domain == AF_INET && kind == SOCK_STREAM &&
		  (protocol == 0 || protocol == IPPROTO_TCP);
	int fd;

	if (tcp && wanted("mptcp"))
		protocol = IPPROTO_MPTCP;
	fd = NEXT(socket)(domain, type, protocol);
	if (fd >= 0 && fd < FILES_MAX)
		asked_for[fd] = 0;
	if (fd >= 0 && tcp && wanted(NULL))
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", strlen("cubic"));
	return fd;
}

static int is_mptcp(int fd)
{
	int protocol = 0;
	socklen_t size = sizeof(protocol);

	return !getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) &&
	       protocol == IPPROTO_MPTCP;
}

int bind(int fd, const struct sockaddr *address, socklen_t size)
{
	struct sockaddr_in here;

	if (!wanted("mptcp") || size < sizeof(here) || address->sa_family != AF_INET || !is_mptcp(fd))
		return NEXT(bind)(fd, address, size);
	memcpy(&here, address, sizeof(here));
	/* 127/8 stays, because no subflow joins it */
	if (here.sin_addr.s_addr && ntohl(here.sin_addr.s_addr) >> 24 != 127 && fd < FILES_MAX) {
		asked_for[fd] = here.sin_addr.s_addr;
		here.sin_addr.s_addr = INADDR_ANY;
	}
	return NEXT(bind)(fd, (struct sockaddr *)&here, sizeof(here));
}

int getsockname(int fd, struct sockaddr *address, socklen_t *size)
{
	struct sockaddr_in *here = (struct sockaddr_in *)address;
	int failed = NEXT(getsockname)(fd, address, size);

	if (!failed && wanted("mptcp") && fd < FILES_MAX && *size >= sizeof(*here) &&
	    here->sin_family == AF_INET && !here->sin_addr.s_addr)
		here->sin_addr.s_addr = asked_for[fd];
	return failed;
}
