/* The one file that an operator copies: this launcher with the program's files, compressed, behind it.
 *
 * It finds the files unpacked, or unpacks them once, and becomes the program by exec: no child, no temporary directory, and
 * kill -9 of its pid kills the program. Owns the payload directories: where they may be, who may have written them, when one is
 * whole, when one is removed. Refuses a directory that anybody but root or the caller could have changed, and bytes whose hash
 * is not the one that names them. Invariant: a directory named by a hash is whole; it appears by one rename, after its last
 * byte is on disk, and is not removed while a process of it lives (each holds a lock on its MANIFEST that many may hold; the one
 * that excludes them takes the right to write it, so that nobody but its owner can keep others out).
 *
 * Places, in order: <directory of this file>/agentplane.d (made by `agentplane unpack` alone), then for root /var/cache/agentplane
 * and for others $CACHE_DIRECTORY, $XDG_CACHE_HOME/agentplane or ~/.cache/agentplane. Root's environment is not asked.
 *
 * Behind the ELF image: the payload (a tar, ustar, under zstd), then struct trailer. Linux, linked statically: it runs where the
 * program's own libc is missing or too old, and says so.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <zstd.h>

#define MAGIC "agentplane-payload-1"
#define PROGRAM "agentplane"
#define LOCKED "MANIFEST"
#define HEX 64
#define KEPT 2            /* payloads that stay in a cache: the one in use and the one to go back to */
#define LOCK_FD_MIN 200   /* above what a service manager passes */
#define LOCK_MS 3000      /* how long whoever removes a payload may hold it, which takes a rename */
#define OPERATIONAL 4
#define PLACES_MAX 4
#ifndef NEEDS_GLIBC
#define NEEDS_GLIBC 34    /* the least 2.N that the program's libraries ask for; the build says it */
#endif

struct trailer {
    unsigned char payload[32];  /* SHA-256 of the compressed payload: the name of its directory */
    unsigned char manifest[32]; /* SHA-256 of the file MANIFEST inside; read by `version --verify` */
    uint64_t size;              /* bytes of the compressed payload, little-endian as all of it */
    uint64_t unpacked;          /* bytes that its files take */
    char magic[24];
};

static char why[PLACES_MAX][PATH_MAX + 200]; /* why each place did not do */
static int tried;

static void say(const char *format, ...) {
    char line[2 * PATH_MAX];
    va_list rest;
    va_start(rest, format);
    int length = vsnprintf(line, sizeof line - 1, format, rest);
    va_end(rest);
    if (length > (int)sizeof line - 2)
        length = (int)sizeof line - 2;
    line[length++] = '\n';
    if (write(2, line, (size_t)length) < 0)
        return;
}

#define END(...)                                                                                                                   \
    do {                                                                                                                           \
        say("agentplane: " __VA_ARGS__);                                                                                           \
        _exit(OPERATIONAL);                                                                                                        \
    } while (0)

/* Notes why the place being tried does not do. */
static int not_here(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vsnprintf(why[tried], sizeof why[tried], format, rest);
    va_end(rest);
    return -1;
}

/* --- SHA-256, FIPS 180-4 ------------------------------------------------------------------------------------------------------ */

static const uint32_t ROUND[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turned(uint32_t word, int by) { return word >> by | word << (32 - by); }

static void sha256_block(uint32_t state[8], const unsigned char *bytes) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)bytes[4 * i] << 24 | (uint32_t)bytes[4 * i + 1] << 16 | (uint32_t)bytes[4 * i + 2] << 8 | bytes[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7] + (turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3) +
               (turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t one = v[7] + (turned(v[4], 6) ^ turned(v[4], 11) ^ turned(v[4], 25)) + ((v[4] & v[5]) ^ (~v[4] & v[6])) + ROUND[i] + w[i];
        uint32_t two = (turned(v[0], 2) ^ turned(v[0], 13) ^ turned(v[0], 22)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++)
        state[i] += v[i];
}

static void sha256(const unsigned char *bytes, uint64_t size, unsigned char digest[32]) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    unsigned char last[128] = {0};
    uint64_t whole = size / 64 * 64, left = size - whole, padded = left < 56 ? 64 : 128;
    for (uint64_t at = 0; at < whole; at += 64)
        sha256_block(state, bytes + at);
    memcpy(last, bytes + whole, left);
    last[left] = 0x80;
    for (int i = 0; i < 8; i++)
        last[padded - 1 - (uint64_t)i] = (unsigned char)(size * 8 >> 8 * i);
    for (uint64_t at = 0; at < padded; at += 64)
        sha256_block(state, last + at);
    for (int i = 0; i < 32; i++)
        digest[i] = (unsigned char)(state[i / 4] >> (24 - 8 * (i % 4)));
}

/* --- who may have written a directory ------------------------------------------------------------------------------------------ */

/* Whether only root and the caller can have changed what is in a directory, or put another in its place. */
static int is_ours(const struct stat *found, uid_t uid) {
    if (!S_ISDIR(found->st_mode) || (found->st_uid != 0 && found->st_uid != uid))
        return 0;
    if (found->st_mode & (S_IWGRP | S_IWOTH))
        return found->st_uid == 0 && found->st_mode & S_ISVTX;
    return 1;
}

/* Opens an absolute path one name after the other, following no link, and asks of each directory on the way who may write it.
 * The descriptor, or -1 with errno, or -2 where one of them is not ours (named in why[]). */
static int open_ours(const char *path, uid_t uid) {
    char at[PATH_MAX];
    struct stat found;
    int here = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    size_t done = 0;
    if (here < 0)
        return -1;
    for (;;) {
        if (fstat(here, &found) < 0)
            break;
        if (!is_ours(&found, uid)) {
            snprintf(at, sizeof at, "%.*s", (int)(done ? done : 1), path);
            not_here(found.st_uid != 0 && found.st_uid != uid ? "%s belongs to uid %u, and files there count only when root%s owns it"
                                                              : "%s may be written by others (mode %o)%s: chmod go-w it",
                     at, found.st_uid != 0 && found.st_uid != uid ? found.st_uid : found.st_mode & 07777,
                     uid && found.st_uid != 0 && found.st_uid != uid ? " or the caller" : "");
            close(here);
            return -2;
        }
        while (path[done] == '/')
            done++;
        if (!path[done])
            return here;
        size_t end = done + strcspn(path + done, "/");
        snprintf(at, sizeof at, "%.*s", (int)(end - done), path + done);
        int next = openat(here, at, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        close(here);
        if (next < 0)
            return -1;
        here = next;
        done = end;
    }
    close(here);
    return -1;
}

/* --- removing ------------------------------------------------------------------------------------------------------------------ */

static void remove_tree(int above, const char *name) {
    int fd = openat(above, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (directory != NULL) {
        for (struct dirent *one; (one = readdir(directory)) != NULL;)
            if (strcmp(one->d_name, ".") && strcmp(one->d_name, "..") && unlinkat(fd, one->d_name, 0) < 0)
                remove_tree(fd, one->d_name);
        closedir(directory);
    }
    unlinkat(above, name, AT_REMOVEDIR);
}

/* A lock of the open file description, which an exec and a child keep as they keep the descriptor. */
static int locked(int fd, short kind) {
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET};
    return fcntl(fd, F_OFD_SETLK, &lock);
}

/* A name that no other start makes: pids are alike in two containers over one cache. */
static void new_name(char name[96], const char *hash, const char *end) {
    uint64_t drawn = 0;
    if (getrandom(&drawn, sizeof drawn, GRND_NONBLOCK) != sizeof drawn)
        drawn = (uint64_t)getpid();
    snprintf(name, 96, ".%.16s.%016llx%s", hash, (unsigned long long)drawn, end);
}

static int is_payload(const char *name) { return strlen(name) == HEX && strspn(name, "0123456789abcdef") == HEX; }

/* Takes a directory out of its name, unless somebody lives in it, and removes it. */
static void remove_unused(int place, const char *name) {
    char gone[96];
    int whole = is_payload(name), fd = openat(place, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    /* What is being made is closed to others, and held by the directory itself. */
    int held = whole ? openat(fd, LOCKED, O_RDWR | O_NOFOLLOW | O_CLOEXEC) : fd;
    int unused = whole ? (held < 0 ? errno == ENOENT : locked(held, F_WRLCK) == 0) : flock(fd, LOCK_EX | LOCK_NB) == 0;
    /* Whoever opened it before the rename and locks it after sees that the name is another's, and looks again. */
    if (unused) {
        new_name(gone, name, ".gone");
        if (!whole || renameat(place, name, place, gone) == 0)
            remove_tree(place, whole ? gone : name);
    }
    if (whole && held >= 0)
        close(held);
    close(fd);
}

/* Removes what an unpacking that was killed left behind, and every payload but the newest ones. */
static void prune(int place, const char *newest) {
    struct { char name[HEX + 1]; struct timespec made; } kept[KEPT] = {{{0}, {0}}};
    int fd = dup(place);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (directory == NULL)
        return;
    snprintf(kept[0].name, sizeof kept[0].name, "%s", newest);
    for (struct dirent *one; (one = readdir(directory)) != NULL;) {
        struct stat found;
        if (!is_payload(one->d_name) || !strcmp(one->d_name, newest) || fstatat(place, one->d_name, &found, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        for (int i = 1; i < KEPT; i++)
            if (!kept[i].name[0] || found.st_ctim.tv_sec > kept[i].made.tv_sec ||
                (found.st_ctim.tv_sec == kept[i].made.tv_sec && found.st_ctim.tv_nsec > kept[i].made.tv_nsec)) {
                memmove(kept + i + 1, kept + i, (size_t)(KEPT - 1 - i) * sizeof *kept);
                memcpy(kept[i].name, one->d_name, HEX + 1);
                kept[i].made = found.st_ctim;
                break;
            }
    }
    rewinddir(directory);
    for (struct dirent *one; (one = readdir(directory)) != NULL;) {
        int stays = !is_payload(one->d_name) && one->d_name[0] != '.';
        size_t length = strlen(one->d_name);
        if (one->d_name[0] == '.' && (length < 5 || (strcmp(one->d_name + length - 4, ".new") && strcmp(one->d_name + length - 5, ".gone"))))
            continue;
        for (int i = 0; i < KEPT; i++)
            stays |= !strcmp(one->d_name, kept[i].name);
        if (!stays)
            remove_unused(place, one->d_name);
    }
    closedir(directory);
}

/* --- unpacking ----------------------------------------------------------------------------------------------------------------- */

struct source {
    ZSTD_DStream *stream;
    ZSTD_inBuffer in;
};

/* Exactly size bytes of the tar, or -1. */
static int take(struct source *from, void *into, size_t size) {
    ZSTD_outBuffer out = {into, size, 0};
    while (out.pos < size) {
        size_t before = out.pos, read = from->in.pos, left = ZSTD_decompressStream(from->stream, &out, &from->in);
        if (ZSTD_isError(left) || (out.pos == before && from->in.pos == read))
            return -1;
    }
    return 0;
}

static int write_all(int fd, const char *bytes, size_t size) {
    while (size) {
        ssize_t wrote = write(fd, bytes, size);
        if (wrote < 0 && errno != EINTR)
            return -1;
        if (wrote > 0) {
            bytes += wrote;
            size -= (size_t)wrote;
        }
    }
    return 0;
}

static int write_file(struct source *from, int root, const char *name, uint64_t size, mode_t mode) {
    static char part[1 << 20];
    int fd = openat(root, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0)
        return -1;
    for (uint64_t left = size; left;) {
        size_t now = left < sizeof part ? (size_t)left : sizeof part;
        if (take(from, part, now) < 0 || write_all(fd, part, now) < 0) {
            close(fd);
            return -1;
        }
        left -= now;
    }
    /* The mode whatever the umask was, and the disk's answer to the last write. */
    int failed = fchmod(fd, mode);
    return close(fd) < 0 || failed < 0 ? -1 : 0;
}

/* One tar entry after the other below root. The names were made by our build and are covered by the hash. */
static int unpack_into(int root, const unsigned char *bytes, uint64_t size) {
    struct source from = {ZSTD_createDStream(), {bytes, size, 0}};
    char head[512], name[257], rest[512];
    int status = -1;
    if (from.stream == NULL)
        return -1;
    while (take(&from, head, sizeof head) == 0) {
        if (!head[0]) {
            status = 0;
            break;
        }
        snprintf(name, sizeof name, head[345] ? "%.155s/%.100s" : "%.0s%.100s", head + 345, head);
        uint64_t length = strtoull(head + 124, NULL, 8);
        mode_t mode = (mode_t)strtoul(head + 100, NULL, 8) & 0755;
        if (head[156] == '5') {
            if (mkdirat(root, name, 0755) < 0 && errno != EEXIST)
                break;
            if (fchmodat(root, name, 0755, 0) < 0)
                break;
        } else if (head[156] == '2') {
            head[257] = 0;
            if (symlinkat(head + 157, root, name) < 0)
                break;
        } else if (write_file(&from, root, name, length, mode) < 0) {
            break;
        } else if (length % 512 && take(&from, rest, 512 - length % 512) < 0) {
            break;
        }
    }
    int error = errno;
    ZSTD_freeDStream(from.stream);
    errno = error;
    return status;
}

/* The N of glibc 2.N as its library says of itself; 0 where there is none, -1 where it does not say. */
static int glibc_here(void) {
    static const char *const where[] = {"/lib/x86_64-linux-gnu/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6", "/lib64/libc.so.6",
                                        "/usr/lib64/libc.so.6", "/usr/lib/libc.so.6", "/lib/libc.so.6"};
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        struct stat found;
        int fd = open(where[i], O_RDONLY | O_CLOEXEC), minor = -1;
        if (fd < 0)
            continue;
        if (fstat(fd, &found) == 0 && found.st_size > 0) {
            size_t size = (size_t)found.st_size;
            char *bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
            if (bytes != MAP_FAILED) {
                static const char said[] = "stable release version 2.";
                char *at = memmem(bytes, size, said, sizeof said - 1);
                if (at != NULL && at + sizeof said + 3 < bytes + size)
                    minor = atoi(at + sizeof said - 1);
                munmap(bytes, size);
            }
        }
        close(fd);
        return minor;
    }
    return 0;
}

/* 0, or the errno of the first that could not be made. */
static int make_parents(char *path, mode_t mode) {
    for (char *at = strchr(path + 1, '/');; at = strchr(at + 1, '/')) {
        if (at != NULL)
            *at = 0;
        int failed = mkdir(path, mode) < 0 && errno != EEXIST ? errno : 0;
        if (at == NULL || failed)
            return failed;
        *at = '/';
    }
}

/* Unpacks into <place>/<hash>; 0, or -1 with the reason noted. Whether it is there then, `hold` says. */
static int unpack(const char *place, const char *hash, const unsigned char *bytes, const struct trailer *end, uid_t uid) {
    char path[PATH_MAX], part[96];
    unsigned char digest[32];
    struct statvfs disk;
    int glibc = glibc_here();
    if (glibc == 0)
        return not_here("this system has no glibc, and the program needs 2.%d or later", NEEDS_GLIBC);
    if (glibc > 0 && glibc < NEEDS_GLIBC)
        return not_here("this system's glibc is 2.%d, and the program needs 2.%d or later", glibc, NEEDS_GLIBC);
    sha256(bytes, end->size, digest);
    if (memcmp(digest, end->payload, sizeof digest))
        END("the bytes of the executable are not those that were built; copy it again and compare SHA256SUMS.");
    mode_t mask = umask(022);
    snprintf(path, sizeof path, "%s", place);
    int failed = make_parents(path, uid ? 0700 : 0755);
    umask(mask);
    int checked = open_ours(place, uid);
    if (checked < 0)
        return checked == -2 ? -1 : not_here("%s cannot be made by uid %u: %s", place, uid, strerror(failed ? failed : errno));
    int above = openat(checked, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    close(checked);
    if (above < 0)
        return not_here("%s cannot be opened: %s", place, strerror(errno));
    if (fstatvfs(above, &disk) == 0) {
        if (disk.f_flag & ST_NOEXEC) {
            close(above);
            return not_here("%s is on a file system mounted noexec", place);
        }
        if ((uint64_t)disk.f_bavail * disk.f_frsize < end->unpacked + (end->unpacked >> 4)) {
            close(above);
            return not_here("%s has %llu MB free and the program takes %llu", place,
                            (unsigned long long)((uint64_t)disk.f_bavail * disk.f_frsize >> 20), (unsigned long long)(end->unpacked >> 20) + 1);
        }
    }
    new_name(part, hash, ".new");
    if (mkdirat(above, part, 0700) < 0) {
        int error = errno;
        close(above);
        return not_here("%s cannot be written by uid %u: %s", place, uid, strerror(error));
    }
    /* Held, so that nobody takes it for what a killed one left. Who took it for that before has removed it: then it is made anew. */
    int root = openat(above, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat held;
    if (root < 0 || flock(root, LOCK_EX | LOCK_NB) < 0 || fstat(root, &held) < 0 || held.st_nlink == 0) {
        if (root >= 0)
            close(root);
        close(above);
        not_here("%s is cleared away again and again", place);
        return 0;
    }
    mask = umask(022);
    errno = 0;
    int status = unpack_into(root, bytes, end->size), error = errno;
    umask(mask);
    if (status < 0) {
        not_here("%s cannot be filled: %s", place, error ? strerror(error) : "the payload cannot be read");
    } else if (fchmod(root, 0755) < 0 || syncfs(root) < 0) {
        status = not_here("%s cannot be synced: %s", place, strerror(errno));
    } else if (renameat(above, part, above, hash) < 0 && errno != EEXIST && errno != ENOTEMPTY) {
        status = not_here("%s cannot be written: %s", place, strerror(errno));
    } else if (fsync(above) < 0) {
        status = not_here("%s cannot be synced: %s", place, strerror(errno));
    }
    remove_tree(above, part); /* where it failed, or another was first */
    close(root);
    if (status == 0)
        prune(above, hash);
    close(above);
    return status;
}

/* --- finding ------------------------------------------------------------------------------------------------------------------- */

/* Holds <place>/<hash> for this process and what it becomes. The descriptor, or -1 with the reason noted; -2 where it is not there. */
static int hold(const char *place, const char *hash, uid_t uid) {
    char path[PATH_MAX];
    struct stat held, named;
    if (snprintf(path, sizeof path, "%s/%s", place, hash) >= (int)sizeof path)
        return not_here("%s is too long a path", place);
    for (int round = 0; round < 8; round++) {
        int checked = open_ours(path, uid);
        if (checked == -2)
            return -1;
        if (checked < 0)
            return errno == ENOENT ? -2 : not_here("%s cannot be opened: %s", path, strerror(errno));
        int fd = openat(checked, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        close(checked);
        int lock = fd < 0 ? -1 : openat(fd, LOCKED, O_RDONLY | O_NOFOLLOW | O_CLOEXEC), failed = lock < 0 ? errno : 0, waited = 0;
        /* Others hold it to remove it, and not for long. */
        while (!failed && locked(lock, F_RDLCK) < 0) {
            failed = (errno != EAGAIN && errno != EACCES) || waited++ == LOCK_MS / 10 ? errno : 0;
            usleep(10000);
        }
        /* Removed between the opening and the lock: then the name is gone, or another's. */
        int gone = fd >= 0 && (fstat(fd, &held) < 0 || stat(path, &named) < 0 || held.st_ino != named.st_ino || held.st_dev != named.st_dev);
        if (gone || failed) {
            close(fd);
            close(lock);
            if (gone)
                continue;
            return failed == ENOENT ? not_here("%s is not whole (%s is missing): remove it, and start again", path, LOCKED)
                                    : not_here("%s cannot be held: %s", path, strerror(failed));
        }
        /* The lock goes with the program, out of the way of what a service manager passes, and where there is no room there, anywhere. */
        int high = fcntl(lock, F_DUPFD, LOCK_FD_MIN);
        if (high < 0)
            fcntl(lock, F_SETFD, 0);
        else
            close(lock);
        return fd;
    }
    return not_here("%s comes and goes", path);
}

/* Where a path leads, whose last names may not be there yet. Links on the way are the system's or the caller's own; what they
 * lead to is what is checked. 0, or -1 for one that is too long. */
static int lead(const char *path, char real[PATH_MAX]) {
    char there[PATH_MAX];
    size_t length = strlen(path);
    for (snprintf(there, sizeof there, "%s", path); realpath(there, real) == NULL && length; there[length] = 0)
        while (length && there[--length] != '/')
            ;
    if (!length)
        real[0] = 0;
    size_t led = strlen(real);
    return snprintf(real + led, PATH_MAX - led, "%s", path + length) < (int)(PATH_MAX - led) ? 0 : -1;
}

/* The places a payload may be in, in order; their number. The first is where `unpack` puts it. */
static int places(char found[PLACES_MAX][PATH_MAX], const char *self, uid_t uid) {
    int count = 0;
    const char *slash = strrchr(self, '/');
    snprintf(found[count++], PATH_MAX, "%.*s/agentplane.d", (int)(slash - self), self);
    if (uid != 0 && getauxval(AT_SECURE))
        return count;
    const char *said[] = {"/var/cache", getenv("CACHE_DIRECTORY"), getenv("XDG_CACHE_HOME"), getenv("HOME")};
    for (int i = uid ? 1 : 0; i < (uid ? 4 : 1); i++) {
        char place[PATH_MAX], real[PATH_MAX];
        if (said[i] == NULL || said[i][0] != '/' || (i == 3 && said[2] != NULL && said[2][0] == '/'))
            continue;
        size_t first = i == 1 ? strcspn(said[i], ":") : strlen(said[i]);
        if (snprintf(place, sizeof place, "%.*s%s", (int)first, said[i], i == 3 ? "/.cache" : "") >= (int)sizeof place)
            continue;
        if (lead(place, real) < 0)
            continue;
        /* The service's directory is the plane's alone; the others are shared. */
        if (snprintf(found[count], PATH_MAX, "%s%s", real, i == 1 ? "" : "/agentplane") < PATH_MAX)
            count++;
    }
    return count;
}

static int asks_to_unpack(char *const argv[]) {
    if (argv[0] == NULL || argv[1] == NULL || strcmp(argv[1], "unpack"))
        return 0;
    for (int i = 2; argv[i] != NULL; i++)
        if (!strcmp(argv[i], "-h") || !strcmp(argv[i], "--help"))
            return 0;
    return 1;
}

int main(int argc, char *argv[], char *envp[]) {
    static char found[PLACES_MAX][PATH_MAX];
    char self[PATH_MAX], hash[HEX + 1];
    struct trailer end;
    struct stat file;
    sigset_t ends;
    uid_t uid = geteuid();
    (void)argc;

    /* The kernel drops a signal of PID 1 whose action is the default, but keeps one that is blocked: the program takes these up. */
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGHUP);
    sigprocmask(SIG_BLOCK, &ends, NULL);

    /* The payload's own loader finds its file there as well, and says so in words that help nobody. */
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0)
        END("/proc is not mounted, and a program finds its own file there: mount -t proc proc /proc.");
    self[length] = 0;
    /* By the kernel's link: the file that runs, whatever has been put under its name meanwhile. */
    int own = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    static const char replaced[] = " (deleted)";
    size_t name = (size_t)length < sizeof replaced ? 0 : (size_t)length - sizeof replaced + 1;
    if (name && access(self, F_OK) < 0 && !strcmp(self + name, replaced))
        self[name] = 0;
    if (own < 0 || fstat(own, &file) < 0)
        END("%s cannot be read: %s.", self, strerror(errno));
    if (file.st_size < (off_t)sizeof end || pread(own, &end, sizeof end, file.st_size - (off_t)sizeof end) != (ssize_t)sizeof end ||
        memcmp(end.magic, MAGIC, sizeof MAGIC) || end.size > (uint64_t)file.st_size - sizeof end)
        END("%s was cut short or changed; copy it again and compare SHA256SUMS.", self);
    for (int i = 0; i < 32; i++)
        snprintf(hash + 2 * i, 3, "%02x", end.payload[i]);

    int count = places(found, self, uid), unpacks = asks_to_unpack(argv), held = -2, first = 1;
    if (unpacks)
        count = 1;
    for (tried = 0; tried < count; tried++) {
        /* Between its last byte and our lock another build's start may clear it away again: then it is made anew. */
        for (int round = 0; (held = hold(found[tried], hash, uid)) == -2 && (tried || unpacks) && round < 16; round++) {
            /* The payload ends where the trailer begins; a page is where a mapping may begin. */
            off_t from = file.st_size - (off_t)sizeof end - (off_t)end.size, page = from / 65536 * 65536;
            size_t size = (size_t)(end.size + (uint64_t)(from - page));
            unsigned char *bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, own, page);
            if (bytes == MAP_FAILED)
                END("%s cannot be mapped: %s.", self, strerror(errno));
            int unpacked = unpack(found[tried], hash, bytes + (from - page), &end, uid);
            munmap(bytes, size);
            if (unpacked < 0)
                break;
        }
        if (held >= 0)
            break;
    }
    if (held < 0) {
        for (int i = 0; i < count; i++)
            if (why[i][0]) {
                say("%s%s", first ? "agentplane: the program's files cannot be unpacked: " : "agentplane: and ", why[i]);
                first = 0;
            }
        END("%s", unpacks ? "`unpack` puts them beside the executable: install that in a directory which only root or you can write."
                  : count == 1 ? "there is no directory for the program's files: set XDG_CACHE_HOME, or run `agentplane unpack` as root once."
                               : "name a directory that may execute with XDG_CACHE_HOME, or run `agentplane unpack` as root once.");
    }
    close(own);
    argv[0] = self;
    syscall(SYS_execveat, held, PROGRAM, argv, envp, 0);
    if (errno == ENOENT && faccessat(held, PROGRAM, F_OK, 0) < 0)
        END("%s/%s is not whole (%s is missing): remove it, and start again.", found[tried], hash, PROGRAM);
    if (errno == ENOENT)
        END("the program's loader is missing: it needs glibc 2.%d or later.", NEEDS_GLIBC);
    if (errno == EACCES)
        END("%s may not be executed: mounted noexec, or forbidden; set XDG_CACHE_HOME, or run `agentplane unpack` as root once.", found[tried]);
    END("the program in %s cannot be started: %s.", found[tried], strerror(errno));
}
