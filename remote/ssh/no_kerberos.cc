// The symbols of GSSAPI that libssh.a refers to. MIT Kerberos has no static library, and ddplaunch uses the
// ssh program for hosts that need a ticket (ssh_transport.cc), so libssh's own GSSAPI login is never
// started. These definitions exist for the linker, and a call ends the program.
#include <cstdio>
#include <cstdlib>

namespace {

[[noreturn]] void called(const char* name) {
  std::fprintf(stderr, "ddplaunch: internal error: libssh called %s (please report)\n", name);
  std::abort();
}

}  // namespace

#define DDP_NO_GSSAPI(name)  \
  [[noreturn]] void name() { \
    called(#name);           \
  }

extern "C" {

void* GSS_C_NT_HOSTBASED_SERVICE = nullptr;
void* GSS_C_NT_USER_NAME = nullptr;
DDP_NO_GSSAPI(gss_accept_sec_context)
DDP_NO_GSSAPI(gss_acquire_cred)
DDP_NO_GSSAPI(gss_add_oid_set_member)
DDP_NO_GSSAPI(gss_create_empty_oid_set)
DDP_NO_GSSAPI(gss_delete_sec_context)
DDP_NO_GSSAPI(gss_display_name)
DDP_NO_GSSAPI(gss_display_status)
DDP_NO_GSSAPI(gss_get_mic)
DDP_NO_GSSAPI(gss_import_name)
DDP_NO_GSSAPI(gss_indicate_mechs)
DDP_NO_GSSAPI(gss_init_sec_context)
DDP_NO_GSSAPI(gss_inquire_cred)
DDP_NO_GSSAPI(gss_inquire_cred_by_mech)
DDP_NO_GSSAPI(gss_release_buffer)
DDP_NO_GSSAPI(gss_release_cred)
DDP_NO_GSSAPI(gss_release_name)
DDP_NO_GSSAPI(gss_release_oid)
DDP_NO_GSSAPI(gss_release_oid_set)
DDP_NO_GSSAPI(gss_test_oid_set_member)
DDP_NO_GSSAPI(gss_verify_mic)

}  // extern "C"
