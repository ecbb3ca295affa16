// The agent resolves no names: the master sends addresses. Asio's compiled library still references the
// resolver. A static program that links glibc's resolver needs at run time the glibc of its build, to load
// its name services. These functions replace the resolver, so that the program runs on any host that it is
// pushed to.
#include <netdb.h>

extern "C" {

int getaddrinfo(const char*, const char*, const addrinfo*, addrinfo**) {
  return EAI_FAIL;
}

void freeaddrinfo(addrinfo*) {}

int getnameinfo(const sockaddr*, socklen_t, char*, socklen_t, char*, socklen_t, int) {
  return EAI_FAIL;
}

}  // extern "C"
