// Replaces the functions of glibc that load libraries at run time: the name service and dlopen. Glibc's own
// would need on each machine exactly the glibc of the build. ddplaunch asks `getent`
// (remote/start/resolver.h), and the agent gets addresses from the master. Asio, libssh, OpenSSL and
// glob() still refer to these functions. Their calls fail, as on a system without a name service or without
// modules.
#include <netdb.h>
#include <pwd.h>

#include <cerrno>

extern "C" {

int getaddrinfo(const char*, const char*, const addrinfo*, addrinfo**) {
  return EAI_FAIL;
}

void freeaddrinfo(addrinfo*) {}

int getnameinfo(const sockaddr*, socklen_t, char*, socklen_t, char*, socklen_t, int) {
  return EAI_FAIL;
}

hostent* gethostbyname(const char*) {
  return nullptr;
}

passwd* getpwnam(const char*) {
  return nullptr;
}

int getpwuid_r(uid_t, passwd*, char*, size_t, passwd** found) {
  *found = nullptr;
  return 0;
}

// glob() calls these under glibc's own names. They serve "~user" in a pattern, and no caller has one.
int no_user_by_name(const char*, passwd*, char*, size_t, passwd** found) __asm__("__getpwnam_r");
int no_user_by_name(const char*, passwd*, char*, size_t, passwd** found) {
  *found = nullptr;
  return 0;
}

int no_login_name(char*, size_t) __asm__("__getlogin_r");
int no_login_name(char*, size_t) {
  return ENOENT;
}

// A thread's destructors belong to a library, or to the program where none is found. Glibc's own search
// refers to its loader since 2.41.
void* no_library_with(unsigned long) __asm__("_dl_find_dso_for_object");
void* no_library_with(unsigned long) {
  return nullptr;
}

void* dlopen(const char*, int) {
  return nullptr;
}

void* dlsym(void*, const char*) {
  return nullptr;
}

int dlclose(void*) {
  return -1;
}

char* dlerror() {
  static char text[] = "a static program loads no library";
  return text;
}

// iconv() and international host names load their modules by these names of glibc.
void* __libc_dlopen_mode(const char*, int) {  // NOLINT(bugprone-reserved-identifier)
  return nullptr;
}

void* __libc_dlsym(void*, const char*) {  // NOLINT(bugprone-reserved-identifier)
  return nullptr;
}

void* __libc_dlvsym(void*, const char*, const char*) {  // NOLINT(bugprone-reserved-identifier)
  return nullptr;
}

int __libc_dlclose(void*) {  // NOLINT(bugprone-reserved-identifier)
  return -1;
}

int dladdr(const void*, void*) {
  return 0;
}

}  // extern "C"
