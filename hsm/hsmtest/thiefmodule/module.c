/*
 * A malicious PKCS#11 module. When it is loaded it tries what a thief would: each line of the file PATH.targets beside it is an act and its
 * object. It says on standard error how each went, "thief: ACT OBJECT: done" or the error, and then works as the module PATH.real does.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int opened(const char *path, int flags) {
	int fd = open(path, flags | O_CLOEXEC, 0600);
	if (fd >= 0) close(fd);
	return fd < 0 ? errno : 0;
}

static int reach(int family, int type, const struct sockaddr *to, socklen_t length) {
	int fd = socket(family, type | SOCK_CLOEXEC, 0);
	int failed = fd < 0 || connect(fd, to, length) || (type == SOCK_DGRAM && send(fd, "x", 1, 0) < 0) ? errno : 0;
	if (fd >= 0) close(fd);
	return failed;
}

static int inet(int type, const char *port) {
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(port)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	return reach(AF_INET, type, (struct sockaddr *)&to, sizeof to);
}

static struct sockaddr_un at(const char *path) {
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	size_t n = strlen(path);
	if (n < sizeof to.sun_path) memcpy(to.sun_path, path, n + 1);
	return to;
}

/* make asks the admin socket for an API key. */
static int make(const char *path) {
	static const char request[] =
		"POST /keys HTTP/1.1\r\nHost: attestd\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{\"name\":\"thief\"}";
	struct sockaddr_un to = at(path);
	char answer[4096];
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to)) return errno;
	signal(SIGPIPE, SIG_IGN);
	if (send(fd, request, sizeof request - 1, MSG_NOSIGNAL) < 0) return errno;
	ssize_t n = read(fd, answer, sizeof answer);
	if (n <= 0) return n ? errno : ECONNRESET;
	return 0; /* whatever it answers: it has answered */
}

/* orphan does it in a process that has no ancestor in common with the module's but init. */
static int orphan(const char *path) {
	int tell[2], result = ECHILD;
	if (pipe2(tell, O_CLOEXEC)) return errno;
	pid_t child = fork();
	if (child == 0) {
		setsid();
		if (fork() == 0) {
			while (getppid() == child) usleep(1000);
			result = make(path);
			if (write(tell[1], &result, sizeof result) < 0) _exit(1);
		}
		_exit(0);
	}
	waitpid(child, NULL, 0);
	close(tell[1]);
	if (read(tell[0], &result, sizeof result) != sizeof result) result = EPIPE;
	close(tell[0]);
	return result;
}

static int unixSocket(const char *path) {
	struct sockaddr_un to = at(path);
	return reach(AF_UNIX, SOCK_STREAM, (struct sockaddr *)&to, sizeof to);
}

/* trace attaches to a process, and lets it go on. */
static int trace(pid_t process) {
	if (ptrace(PTRACE_ATTACH, process, 0, 0)) return errno;
	waitpid(process, NULL, __WALL);
	ptrace(PTRACE_DETACH, process, 0, 0);
	return 0;
}

static int try(const char *act, const char *object) {
	if (!strcmp(act, "read")) return opened(object, O_RDONLY);
	if (!strcmp(act, "write")) return opened(object, O_RDWR);
	if (!strcmp(act, "create")) return opened(object, O_WRONLY | O_CREAT);
	if (!strcmp(act, "list")) return opened(object, O_RDONLY | O_DIRECTORY);
	if (!strcmp(act, "tcp")) return inet(SOCK_STREAM, object);
	if (!strcmp(act, "udp")) return inet(SOCK_DGRAM, object);
	if (!strcmp(act, "unix")) return unixSocket(object);
	if (!strcmp(act, "api-key")) return make(object);
	if (!strcmp(act, "api-key-orphan")) return orphan(object);
	if (!strcmp(act, "trace")) return trace(atoi(object));
	if (!strcmp(act, "kill")) return kill(atoi(object), 0) ? errno : 0;
	if (!strcmp(act, "io_uring")) return syscall(SYS_io_uring_setup, 1, NULL) < 0 && errno != EFAULT ? errno : 0;
	return EINVAL;
}

static void steal(const char *module) {
	char path[4096], act[32], object[4096];
	snprintf(path, sizeof path, "%s.targets", module);
	FILE *targets = fopen(path, "r");
	if (!targets) {
		fprintf(stderr, "thief: %s: %s\n", path, strerror(errno));
		return;
	}
	while (fscanf(targets, "%31s %4095s", act, object) == 2) {
		int failed = try(act, object);
		fprintf(stderr, "thief: %s %s: %s\n", act, object, failed ? strerror(failed) : "done");
	}
	fprintf(stderr, "thief: has tried all\n");
	fclose(targets);
}

unsigned long C_GetFunctionList(void **list) {
	static unsigned long (*real)(void **);
	Dl_info own;
	char path[4096];
	if (!real) {
		if (!dladdr((void *)C_GetFunctionList, &own)) return 5;
		steal(own.dli_fname);
		snprintf(path, sizeof path, "%s.real", own.dli_fname);
		void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		if (!library) {
			fprintf(stderr, "thief: %s\n", dlerror());
			return 5; /* CKR_GENERAL_ERROR */
		}
		*(void **)&real = dlsym(library, "C_GetFunctionList");
	}
	return real(list);
}
