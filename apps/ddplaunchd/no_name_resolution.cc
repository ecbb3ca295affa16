// The agent resolves no names: the master sends addresses. Asio's compiled library mentions the resolver all
// the same, and a static program that links glibc's would need the very glibc it was built with at run time,
// to load its name services. These take its place, so that the program stays whole wherever it is pushed to.
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
