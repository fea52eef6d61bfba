// TLS 1.3 between members, each showing a certificate of the cluster's own authority that names cluster and
// rank (common/member_name.h). OpenSSL underneath.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "common/member_name.h"
#include "common/status.h"

namespace cairn::tls {

// Paths of PEM files; all or none.
struct TlsFiles {
  std::string ca;    // certificate of the cluster's authority
  std::string cert;  // this member's
  std::string key;   // its private key
  bool none() const { return ca.empty() && cert.empty() && key.empty(); }
};

// Why the private key is not this user's alone, for people; empty: it is.
std::string KeyExposure(const std::string& path);

// What one call has moved: `bytes`, or nothing until the socket has `wait` (POLLIN or POLLOUT).
struct TlsMoved {
  size_t bytes = 0;  // 0 with `wait` 0: the peer has closed the connection, or a handshake is done
  short wait = 0;
  Status status;
};

// One connection's. Used by one thread at a time.
class TlsSession {
 public:
  void Attach(int socket);  // non-blocking; it stays the caller's
  TlsMoved Handshake();     // PERMISSION_DENIED when the certificates do not fit
  TlsMoved Read(char* into, size_t length);
  TlsMoved Write(absl::string_view bytes);
  bool HasPending() const;
  // Whom the peer's certificate names, which the authority has signed and that has not expired.
  StatusOr<MemberName> Peer() const;

 private:
  friend class TlsContext;
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  TlsSession(SSL* ssl, bool server) : ssl_(ssl), server_(server) {}
  TlsMoved Moved(int result);

  const std::unique_ptr<SSL, Free> ssl_;
  const bool server_;
};

// Immutable; thread-safe.
class TlsContext {
 public:
  // INVALID_ARGUMENT names the option: a file is missing or is not what it should be, the key is another
  // certificate's, the certificate is not the authority's, has expired, or names somebody else than `self`; with
  // `may_be_any` it may name any rank of the cluster.
  static StatusOr<std::unique_ptr<TlsContext>> Load(const TlsFiles& files, const MemberName& self,
                                                    bool may_be_any = false);

  StatusOr<std::unique_ptr<TlsSession>> NewSession(bool server) const;

 private:
  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  explicit TlsContext(SSL_CTX* context) : context_(context) {}

  const std::unique_ptr<SSL_CTX, Free> context_;
};

}  // namespace cairn::tls
