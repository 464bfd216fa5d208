//! Management datagrams (MADs) by libibumad, behind safe functions.
//!
//! The library is opened at run time, so that hosts without InfiniBand need not have it. All unsafe
//! code of the subnet is here. Buffers are laid out by the library's own functions; only
//! `PortRecord` repeats a layout of its header, which is part of the library's ABI.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::time::Duration;

use super::mad::{Gid, MAD_LEN, Mad};

/// Name of the library, with the version of its ABI.
const LIBRARY: &CStr = c"libibumad.so.3";
/// Bytes of the library's header in front of a MAD that this module has room for; it is 64 today.
const HEADER_MAX: usize = 128;
/// Length of the names in the library's records.
const NAME_LEN: usize = 20;
/// State of a port that carries data (`PortInfo`).
const ACTIVE: u32 = 4;

/// The library's record of a port, `umad_port_t`.
#[repr(C)]
struct PortRecord {
    device: [c_char; NAME_LEN],
    number: c_int,
    lid: u32,
    lmc: u32,
    sm_lid: u32,
    sm_sl: u32,
    state: u32,
    physical_state: u32,
    rate: u32,
    capabilities: u32,
    gid_prefix: u64,
    guid: u64,
    pkeys_len: u32,
    pkeys: *mut u16,
    link_layer: [c_char; NAME_LEN],
    /// For fields that a later version of the library may add.
    spare: [u64; 16],
}

// The library's record has 112 bytes where pointers have 8.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<PortRecord>() == 112 + 128);

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($argument:ty),*) -> $answer:ty;)*) => {
        /// The functions of the library that are used.
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> $answer,)*
        }

        impl Functions {
            /// Looks the functions up by `symbol`.
            fn find(
                symbol: impl Fn(&CStr) -> Result<*mut c_void, String>,
            ) -> Result<Functions, String> {
                $(
                    let found = symbol($name)?;
                    // SAFETY: the function of this name has the type of its field, by the library's
                    // header, and the ABI's version is in the library's name.
                    let $field = unsafe {
                        std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($argument),*) -> $answer,
                        >(found)
                    };
                )*
                Ok(Functions { $($field,)* })
            }
        }
    };
}

functions! {
    init = c"umad_init": fn() -> c_int;
    port = c"umad_get_port": fn(*const c_char, c_int, *mut PortRecord) -> c_int;
    release_port = c"umad_release_port": fn(*mut PortRecord) -> c_int;
    open_port = c"umad_open_port": fn(*const c_char, c_int) -> c_int;
    close_port = c"umad_close_port": fn(c_int) -> c_int;
    register = c"umad_register": fn(c_int, c_int, c_int, u8, *mut c_long) -> c_int;
    size = c"umad_size": fn() -> usize;
    mad = c"umad_get_mad": fn(*mut c_void) -> *mut c_void;
    status = c"umad_status": fn(*mut c_void) -> c_int;
    set_address = c"umad_set_addr": fn(*mut c_void, c_int, c_int, c_int, c_int) -> c_int;
    send = c"umad_send": fn(c_int, c_int, *mut c_void, c_int, c_int, c_int) -> c_int;
    receive = c"umad_recv": fn(c_int, *mut c_void, *mut c_int, c_int) -> c_int;
    poll = c"umad_poll": fn(c_int, c_int) -> c_int;
    descriptor = c"umad_get_fd": fn(c_int) -> c_int;
}

/// Opens the library once for the process, and initialises it.
fn library() -> io::Result<&'static Functions> {
    static LOADED: OnceLock<Result<Functions, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(load);
    loaded.as_ref().map_err(|because| {
        let text = format!("cannot use libibumad to reach the subnet manager: {because}");
        io::Error::new(io::ErrorKind::NotFound, text)
    })
}

fn load() -> Result<Functions, String> {
    // SAFETY: the name is a C string. The library's initialisers run, as those of any library.
    let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        return Err(format!("{}; install libibumad3", last_error()));
    }
    let symbol = |name: &CStr| -> Result<*mut c_void, String> {
        // SAFETY: the handle is open and never closed, and the name is a C string.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        match found.is_null() {
            true => Err(last_error()),
            false => Ok(found),
        }
    };
    let functions = Functions::find(symbol)?;
    // SAFETY: takes nothing, and is called once.
    if unsafe { (functions.init)() } < 0 {
        return Err(format!("umad_init: {}", io::Error::last_os_error()));
    }
    // SAFETY: takes nothing.
    match unsafe { (functions.size)() } {
        size if size <= HEADER_MAX => Ok(functions),
        size => Err(format!("its header has {size} bytes")),
    }
}

/// What `dlopen` or `dlsym` has to say about its last failure.
fn last_error() -> String {
    // SAFETY: `dlerror` returns null or a C string that stays until this thread calls it again.
    unsafe {
        let text = libc::dlerror();
        match text.is_null() {
            true => "unknown".into(),
            false => CStr::from_ptr(text).to_string_lossy().into_owned(),
        }
    }
}

/// Turns the library's answer, a negative error number, into an error.
fn check(answer: c_int, what: &str) -> io::Result<c_int> {
    if answer >= 0 {
        return Ok(answer);
    }
    let e = match answer {
        -1 => io::Error::last_os_error(),
        number => io::Error::from_raw_os_error(-number),
    };
    Err(io::Error::new(e.kind(), format!("{what}: {e}")))
}

/// What the kernel knows of an InfiniBand port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// Name of its device, for example `mlx5_0`.
    pub device: String,
    /// Number of the port on its device, from 1.
    pub number: u8,
    /// GUID-based address of the port, which the subnet manager knows it by.
    pub gid: Gid,
    /// LID of the port. The subnet manager assigns it.
    pub lid: u16,
    /// LID of the subnet manager; 0 if none has configured the port yet.
    pub sm_lid: u16,
    /// Service level to the subnet manager.
    pub sm_sl: u8,
    /// Whether the port carries data.
    pub is_active: bool,
}

impl Port {
    /// Device and number, as messages name the port.
    pub fn name(&self) -> String {
        format!("{}/{}", self.device, self.number)
    }
}

/// Where a MAD goes.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    /// LID of the port; 0xffff with a directed route.
    pub lid: u16,
    /// Queue pair: 0 for subnet management, 1 for anything else.
    pub queue_pair: u32,
    /// Key of the queue pair; 0 for queue pair 0.
    pub queue_key: u32,
    /// Service level.
    pub sl: u8,
}

/// The right to send MADs of one class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agent(c_int);

/// A MAD that has come in.
#[derive(Debug)]
pub struct Received {
    /// False: this is a request of our own, which nobody has answered.
    pub is_answered: bool,
    /// The datagram.
    pub mad: Mad,
}

/// An open InfiniBand port that sends and receives MADs.
pub struct Umad {
    functions: &'static Functions,
    device: CString,
    number: c_int,
    id: c_int,
    /// Room for the library's header and a MAD, aligned as the library's records are.
    room: Box<[u64; (HEADER_MAX + MAD_LEN) / 8]>,
}

impl Umad {
    /// Opens a port. Without a device the library takes the first one whose port is active; port 0
    /// is the first active port of the device.
    pub fn open(device: Option<&str>, number: u8) -> io::Result<Umad> {
        let functions = library()?;
        let port = look(functions, device, number)?;
        let device = c_string(&port.device)?;
        let number = c_int::from(port.number);
        // SAFETY: the library is initialised, and the name is a C string.
        let id = unsafe { (functions.open_port)(device.as_ptr(), number) };
        let id = check(id, &format!("cannot open port {}", port.name()))?;
        Ok(Umad {
            functions,
            device,
            number,
            id,
            room: Box::new([0; (HEADER_MAX + MAD_LEN) / 8]),
        })
    }

    /// What the kernel knows of the port now.
    pub fn port(&self) -> io::Result<Port> {
        let device = self.device.to_string_lossy();
        look(self.functions, Some(&device), self.number as u8)
    }

    /// Gets the right to send requests of a management class in one version, and to receive their
    /// answers.
    pub fn register(&mut self, class: u8, version: u8) -> io::Result<Agent> {
        let (class, version) = (c_int::from(class), c_int::from(version));
        // SAFETY: the port is open. A null mask means that no requests are received.
        let agent =
            unsafe { (self.functions.register)(self.id, class, version, 0, std::ptr::null_mut()) };
        check(agent, "cannot register for management datagrams").map(Agent)
    }

    /// Sends a request. After `timeout` without an answer, the request itself comes back by
    /// [`Umad::receive`].
    pub fn send(
        &mut self,
        agent: Agent,
        to: Destination,
        mad: &Mad,
        timeout: Duration,
    ) -> io::Result<()> {
        let timeout = c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX);
        let (lid, sl) = (c_int::from(to.lid), c_int::from(to.sl));
        let (queue_pair, queue_key) = (to.queue_pair as c_int, to.queue_key as c_int);
        let room: *mut c_void = self.room.as_mut_ptr().cast();
        *self.room = [0; (HEADER_MAX + MAD_LEN) / 8];
        // SAFETY: the room has the size of a header and a MAD, which `load` has checked, so the
        // MAD behind the header has MAD_LEN bytes. The library reads both until `send` returns.
        let sent = unsafe {
            (self.functions.set_address)(room, lid, queue_pair, sl, queue_key);
            let bytes: *mut u8 = (self.functions.mad)(room).cast();
            std::ptr::copy_nonoverlapping(mad.as_ptr(), bytes, MAD_LEN);
            (self.functions.send)(self.id, agent.0, room, MAD_LEN as c_int, timeout, 0)
        };
        check(sent, "cannot send a management datagram").map(|_| ())
    }

    /// The next MAD that has come in; `None` if there is none.
    pub fn receive(&mut self) -> io::Result<Option<Received>> {
        if !self.wait(Duration::ZERO)? {
            return Ok(None);
        }
        let mut len = MAD_LEN as c_int;
        let room: *mut c_void = self.room.as_mut_ptr().cast();
        // SAFETY: as in `send`; the library writes at most a header and `len` bytes.
        let agent = unsafe { (self.functions.receive)(self.id, room, &mut len, 0) };
        if let Err(error) = check(agent, "cannot receive a management datagram") {
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        let mut mad = [0; MAD_LEN];
        // SAFETY: the MAD lies behind the header, in MAD_LEN bytes of the room.
        let status = unsafe {
            let bytes: *const u8 = (self.functions.mad)(room).cast();
            std::ptr::copy_nonoverlapping(bytes, mad.as_mut_ptr(), MAD_LEN);
            (self.functions.status)(room)
        };
        Ok(Some(Received {
            is_answered: status == 0,
            mad,
        }))
    }

    /// Blocks until a MAD has come in or `timeout` has passed. Returns whether there is one.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let timeout = timeout.as_nanos().div_ceil(1_000_000);
        let timeout = c_int::try_from(timeout).unwrap_or(c_int::MAX);
        // SAFETY: the port is open.
        match unsafe { (self.functions.poll)(self.id, timeout) } {
            0.. => Ok(true),
            n if -n == libc::ETIMEDOUT => Ok(false),
            // A signal has ended the wait.
            _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => Ok(false),
            n => check(n, "cannot wait for management datagrams").map(|_| false),
        }
    }

    /// Lends the port's descriptor, which is readable when a MAD has come in. Returns what `with`
    /// returns; false if the descriptor is none of the system's.
    pub fn watch(&self, with: impl FnOnce(BorrowedFd<'_>) -> bool) -> bool {
        // SAFETY: the port is open.
        let fd = unsafe { (self.functions.descriptor)(self.id) };
        // SAFETY: asks about a number, whatever it stands for.
        if fd < 0 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            return false;
        }
        // SAFETY: the descriptor is open as long as the port is, which outlives the borrow.
        with(unsafe { BorrowedFd::borrow_raw(fd) })
    }
}

impl Drop for Umad {
    fn drop(&mut self) {
        // SAFETY: the port is open, and nothing uses it after this.
        unsafe { (self.functions.close_port)(self.id) };
    }
}

fn c_string(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))
}

fn look(functions: &Functions, device: Option<&str>, number: u8) -> io::Result<Port> {
    let device = device.map(c_string).transpose()?;
    let name = device.as_ref().map_or(std::ptr::null(), |d| d.as_ptr());
    // SAFETY: all fields are numbers, arrays of numbers or a pointer, which may be zero.
    let mut record: PortRecord = unsafe { std::mem::zeroed() };
    // SAFETY: the name is null or a C string, and the record has the library's layout.
    let found = unsafe { (functions.port)(name, c_int::from(number), &mut record) };
    check(found, "there is no such InfiniBand port")?;
    let device = record.device.iter().take_while(|c| **c != 0);
    let device: Vec<u8> = device.map(|c| *c as u8).collect();
    let mut gid = [0; 16];
    // Both are in network byte order already.
    gid[..8].copy_from_slice(&record.gid_prefix.to_ne_bytes());
    gid[8..].copy_from_slice(&record.guid.to_ne_bytes());
    let port = Port {
        device: String::from_utf8_lossy(&device).into_owned(),
        number: record.number as u8,
        gid: Gid(gid),
        lid: record.lid as u16,
        sm_lid: record.sm_lid as u16,
        sm_sl: record.sm_sl as u8,
        is_active: record.state == ACTIVE,
    };
    // SAFETY: the library has filled the record, and nothing uses it after this.
    unsafe { (functions.release_port)(&mut record) };
    Ok(port)
}
