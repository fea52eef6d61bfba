#include "server/tls/peer_tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "glog/logging.h"

namespace cairn::tls {
namespace {

struct CertificateFree {
  void operator()(X509* certificate) const { X509_free(certificate); }
};
using Certificate = std::unique_ptr<X509, CertificateFree>;

struct NamesFree {
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
};

struct StoreContextFree {
  void operator()(X509_STORE_CTX* context) const { X509_STORE_CTX_free(context); }
};

// Of the first error that OpenSSL has noted in this thread; none is left.
std::string Why() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "no reason is known";
  const char* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : absl::StrCat("OpenSSL error ", code);
}

// --- the socket, as OpenSSL reads and writes it: its own way would raise SIGPIPE

int SocketOf(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

int Result(BIO* bio, ssize_t moved, int retry) {
  BIO_clear_retry_flags(bio);
  if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    BIO_set_flags(bio, retry | BIO_FLAGS_SHOULD_RETRY);
  }
  return static_cast<int>(moved);
}

int SendTo(BIO* bio, const char* bytes, int length) {
  return Result(bio, ::send(SocketOf(bio), bytes, static_cast<size_t>(length), MSG_NOSIGNAL),
                BIO_FLAGS_WRITE);
}

int ReceiveFrom(BIO* bio, char* into, int length) {
  return Result(bio, ::recv(SocketOf(bio), into, static_cast<size_t>(length), 0), BIO_FLAGS_READ);
}

long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

int Create(BIO* bio) {
  BIO_set_init(bio, 1);
  return 1;
}

const BIO_METHOD* SocketMethod() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    if (made == nullptr) return made;
    BIO_meth_set_write(made, SendTo);
    BIO_meth_set_read(made, ReceiveFrom);
    BIO_meth_set_ctrl(made, Control);
    BIO_meth_set_create(made, Create);
    return made;
  }();
  return method;
}

// --- names

// Of the one URI that the certificate has of ours.
StatusOr<MemberName> NameOf(X509* certificate) {
  const std::unique_ptr<GENERAL_NAMES, NamesFree> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  const int count = names == nullptr ? 0 : sk_GENERAL_NAME_num(names.get());
  std::vector<MemberName> found;
  for (int i = 0; i < count; ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* const uri = name->d.uniformResourceIdentifier;
    MemberName member;
    const absl::string_view text(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                                 static_cast<size_t>(ASN1_STRING_length(uri)));
    if (ParseMemberUri(text, &member)) found.push_back(std::move(member));
  }
  if (found.size() == 1) return found.front();
  return absl::PermissionDeniedError(
      absl::StrCat("the certificate names ", found.size(), " members of rings, wants one"));
}

// The certificate as a peer would judge it.
Status CheckOwn(SSL_CTX* context) {
  X509* const own = SSL_CTX_get0_certificate(context);
  const std::unique_ptr<X509_STORE_CTX, StoreContextFree> check(X509_STORE_CTX_new());
  if (check == nullptr ||
      X509_STORE_CTX_init(check.get(), SSL_CTX_get_cert_store(context), own, nullptr) != 1) {
    return absl::ResourceExhaustedError(Why());
  }
  if (X509_verify_cert(check.get()) == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      X509_verify_cert_error_string(X509_STORE_CTX_get_error(check.get())));
}

}  // namespace

std::string KeyExposure(const std::string& path) {
  struct stat of = {};
  if (::stat(path.c_str(), &of) != 0) return ErrnoStatus(errno, path).ToString();
  if ((of.st_mode & (S_IRWXG | S_IRWXO)) == 0) return "";
  return absl::StrCat(path, ": others than its owner may use it (mode ",
                      absl::StrFormat("%04o", of.st_mode & 07777),
                      "); who has read it can speak as this member");
}

StatusOr<std::unique_ptr<TlsContext>> TlsContext::Load(const TlsFiles& files,
                                                       const MemberName& self, bool may_be_any) {
  auto loaded = std::unique_ptr<TlsContext>(new TlsContext(SSL_CTX_new(TLS_method())));
  SSL_CTX* const context = loaded->context_.get();
  if (context == nullptr) return absl::ResourceExhaustedError(Why());
  const auto wrong = [](absl::string_view option, const std::string& path, absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(option, ": ", path, ": ", why));
  };
  ERR_clear_error();
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // A session that is taken up again would not look at certificates anew.
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  if (SSL_CTX_load_verify_file(context, files.ca.c_str()) != 1) {
    return wrong("peers.ca", files.ca, Why());
  }
  if (SSL_CTX_use_certificate_chain_file(context, files.cert.c_str()) != 1) {
    return wrong("peers.cert", files.cert, Why());
  }
  if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return wrong("peers.key", files.key, Why());
  }
  // Not refused: some systems hand keys to a container's user through its group.
  if (const std::string exposure = KeyExposure(files.key); !exposure.empty()) {
    LOG(WARNING) << "peers.key: " << exposure;
  }
  if (const Status checked = CheckOwn(context); !checked.ok()) {
    return wrong("peers.cert", files.cert, checked.message());
  }
  const StatusOr<MemberName> name = NameOf(SSL_CTX_get0_certificate(context));
  if (!name.ok()) return wrong("peers.cert", files.cert, name.status().message());
  const bool any = name->rank == kAnyRank && name->cluster == self.cluster;
  if (*name != self && !(may_be_any && any)) {
    return wrong("peers.cert", files.cert,
                 absl::StrCat("it names ", MemberUri(*name), ", this member is ", MemberUri(self)));
  }
  return loaded;
}

StatusOr<std::unique_ptr<TlsSession>> TlsContext::NewSession(bool server) const {
  auto session = std::unique_ptr<TlsSession>(new TlsSession(SSL_new(context_.get()), server));
  if (session->ssl_ == nullptr) return absl::ResourceExhaustedError(Why());
  return session;
}

void TlsSession::Attach(int socket) {
  BIO* const bio = BIO_new(SocketMethod());
  if (bio == nullptr) return;  // then the handshake fails
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(socket)));
  SSL_set_bio(ssl_.get(), bio, bio);
}

TlsMoved TlsSession::Moved(int result) {
  if (result > 0) return {static_cast<size_t>(result), 0, absl::OkStatus()};
  const int error = errno;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return {0, POLLIN, absl::OkStatus()};
    case SSL_ERROR_WANT_WRITE:
      return {0, POLLOUT, absl::OkStatus()};
    case SSL_ERROR_ZERO_RETURN:
      return {0, 0, absl::OkStatus()};
    case SSL_ERROR_SYSCALL:
      ERR_clear_error();
      return {0, 0,
              absl::UnavailableError(error == 0
                                         ? "the peer has closed the connection"
                                         : ErrnoStatus(error, "the connection was cut").message())};
    default:
      return {0, 0, absl::PermissionDeniedError(absl::StrCat("TLS: ", Why()))};
  }
}

TlsMoved TlsSession::Handshake() {
  ERR_clear_error();
  errno = 0;
  const int result = server_ ? SSL_accept(ssl_.get()) : SSL_connect(ssl_.get());
  if (result == 1) return {};
  TlsMoved moved = Moved(result);
  if (moved.wait == 0 && moved.status.ok()) {
    moved.status = absl::UnavailableError("the peer has closed the connection");
  }
  const long verified = SSL_get_verify_result(ssl_.get());
  if (!moved.status.ok() && verified != X509_V_OK) {
    moved.status = absl::PermissionDeniedError(
        absl::StrCat("the peer's certificate: ", X509_verify_cert_error_string(verified)));
  }
  return moved;
}

TlsMoved TlsSession::Read(char* into, size_t length) {
  ERR_clear_error();
  errno = 0;
  const auto most = static_cast<int>(std::min<size_t>(length, std::numeric_limits<int>::max()));
  return Moved(SSL_read(ssl_.get(), into, most));
}

TlsMoved TlsSession::Write(absl::string_view bytes) {
  ERR_clear_error();
  errno = 0;
  const auto most =
      static_cast<int>(std::min<size_t>(bytes.size(), std::numeric_limits<int>::max()));
  return Moved(SSL_write(ssl_.get(), bytes.data(), most));
}

bool TlsSession::HasPending() const { return SSL_has_pending(ssl_.get()) == 1; }

StatusOr<MemberName> TlsSession::Peer() const {
  const Certificate certificate(SSL_get1_peer_certificate(ssl_.get()));
  if (certificate == nullptr) return absl::PermissionDeniedError("the peer has no certificate");
  return NameOf(certificate.get());
}

}  // namespace cairn::tls
